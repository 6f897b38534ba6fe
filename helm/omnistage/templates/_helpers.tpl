{{/* Name of the objects: the release's, with the chart's unless it is in there. A Service's begins with a letter and
has no dots, both unlike a release's. */}}
{{- define "omnistage.fullname" -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $name = printf "%s-%s" .Chart.Name $name -}}
{{- else if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- $name | trunc 40 | trimAll "-" -}}
{{- end -}}

{{- define "omnistage.selectorLabels" -}}
app.kubernetes.io/name: omnistage-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "omnistage.labels" -}}
{{ include "omnistage.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: omnistage
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* These labels with more of a user's, of which none may take the place of ours: objects are found by them. */}}
{{- define "omnistage.labelsWith" -}}
{{- merge (include "omnistage.labels" .root | fromYaml) (.more | default dict) | toYaml -}}
{{- end -}}

{{- define "omnistage.serviceAccount" -}}
{{- (.Values.serviceAccount).name | default (ternary (include "omnistage.fullname" .) "default" (default false (.Values.serviceAccount).create)) -}}
{{- end -}}

{{/* A repository under the registry that was given. */}}
{{- define "omnistage.repository" -}}
{{- $registry := .root.Values.registry | trimSuffix "/" -}}
{{- ternary .name (printf "%s/%s" $registry .name) (empty $registry) -}}
{{- end -}}

{{- define "omnistage.image" -}}
{{- $image := .Values.image -}}
{{- $repository := include "omnistage.repository" (dict "root" . "name" $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "omnistage.workerImage" -}}
{{- $own := printf "%s:%s" (include "omnistage.repository" (dict "root" . "name" "omnistage-worker")) (.Values.image.tag | default .Chart.AppVersion) -}}
{{- (.Values.worker).defaultImage | default $own -}}
{{- end -}}

{{/* A map of values that somebody set to null is an empty one, so its members are asked for as (.Values.map).member. */}}
{{- define "omnistage.port" -}}
{{- (.Values.metrics).port | default 8080 -}}
{{- end -}}
