"""The contract of omnistage: what the operator, the runtime and the command line all speak."""
