{{- define "burnish.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "component" NAME): what selectors use; never to change for a running release. */}}
{{- define "burnish.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "burnish.labels" -}}
{{ include "burnish.selector" . }}
app.kubernetes.io/part-of: burnish
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods. A service mesh's proxy would wait for its control plane, which the sandbox cannot reach, and would keep
jobs from ever ending. */}}
{{- define "burnish.podLabels" -}}
{{ include "burnish.labels" . }}
sidecar.istio.io/inject: "false"
{{- end -}}

{{/* (dict "root" $ "image" IMAGE) */}}
{{- define "burnish.image" -}}
{{- $registry := default .root.Values.image.registry .image.registry -}}
{{- if .image.digest -}}
{{- printf "%s/%s@%s" $registry .image.repository .image.digest | quote -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry .image.repository (.image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion) | quote -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "of" VALUES "account" NAME): what every pod has; together with the container's part below it keeps to
the restricted level of Pod Security, whatever the values are. */}}
{{- define "burnish.pod" -}}
serviceAccountName: {{ include "burnish.fullname" .root }}-{{ .account }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.podSecurityContext.runAsUser }}
  runAsUser: {{ . }}
  {{- end }}
  {{- with .root.Values.podSecurityContext.runAsGroup }}
  runAsGroup: {{ . }}
  {{- end }}
  {{- with .root.Values.podSecurityContext.fsGroup }}
  fsGroup: {{ . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $.of $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "of" VALUES) */}}
{{- define "burnish.container" -}}
image: {{ include "burnish.image" (dict "root" .root "image" .of.image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .of.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where stages find the sandbox. */}}
{{- define "burnish.sandboxUrl" -}}
http://{{ include "burnish.fullname" . }}-sandbox.{{ .Release.Namespace }}.svc:{{ .Values.sandbox.service.port }}
{{- end -}}

{{- define "burnish.storeEndpoint" -}}
{{- if .Values.store.endpoint -}}
{{- .Values.store.endpoint -}}
{{- else if .Values.dev.seaweedfs.enabled -}}
http://{{ include "burnish.fullname" . }}-seaweedfs.{{ .Release.Namespace }}.svc:8333
{{- end -}}
{{- end -}}

{{- define "burnish.storeUrl" -}}
{{- if .Values.store.url -}}
{{- .Values.store.url -}}
{{- else if .Values.dev.seaweedfs.enabled -}}
s3://{{ first .Values.dev.seaweedfs.buckets }}
{{- end -}}
{{- end -}}

{{- define "burnish.trackingUri" -}}
{{- if .Values.tracking.uri -}}
{{- .Values.tracking.uri -}}
{{- else if .Values.dev.mlflow.enabled -}}
http://{{ include "burnish.fullname" . }}-mlflow.{{ .Release.Namespace }}.svc:5000
{{- end -}}
{{- end -}}

{{/* Peers of a NetworkPolicy: the pods of stages, here and in the namespaces named. */}}
{{- define "burnish.stagePeers" -}}
- podSelector:
    matchLabels: {{- toYaml .Values.networkPolicy.stagePodLabels | nindent 6 }}
{{- with .Values.networkPolicy.stageNamespaces }}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
  podSelector:
    matchLabels: {{- toYaml $.Values.networkPolicy.stagePodLabels | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "burnish.monitoringPeer" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}
{{- end -}}

{{/* Tag of the stage images, as the compiled pipelines name them. */}}
{{- define "burnish.tag" -}}
{{- default .Chart.AppVersion .Values.image.tag -}}
{{- end -}}
