{{/* Name of the objects: the release's, with the chart's unless it is in there. */}}
{{- define "omnistage.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "omnistage.selectorLabels" -}}
app.kubernetes.io/name: omnistage-operator
app.kubernetes.io/instance: {{ .Release.Name }}
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

{{- define "omnistage.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "omnistage.fullname" .) "default" .Values.serviceAccount.create) -}}
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
{{- .Values.worker.defaultImage | default $own -}}
{{- end -}}
