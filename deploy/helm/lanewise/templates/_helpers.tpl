{{- define "lanewise.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "lanewise.selector" -}}
app.kubernetes.io/name: lanewise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lanewise.labels" -}}
{{ include "lanewise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "lanewise.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* Whether the volume is filled by the pods themselves. */ -}}
{{- define "lanewise.downloads" -}}
{{- if and .Values.model.name (not (hasPrefix "/" .Values.model.name)) (not .Values.model.volume.readOnly) -}}yes{{- end -}}
{{- end -}}

{{- define "lanewise.env" -}}
- {name: LANEWISE_HOST, value: 0.0.0.0}
- {name: LANEWISE_PORT, value: "8000"}
- {name: LANEWISE_LAME_DUCK_S, value: {{ .Values.lameDuckSeconds | quote }}}
- {name: LANEWISE_DRAIN_TIMEOUT_S, value: {{ .Values.drainSeconds | quote }}}
{{- with .Values.model.name }}
- {name: LANEWISE_MODEL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.model.servedNames }}
- {name: LANEWISE_SERVED_MODEL_NAME, value: {{ join "," . | quote }}}
{{- end }}
{{- with .Values.auth.secret }}
- {name: LANEWISE_API_KEY_FILE, value: /keys/api-keys}
{{- end }}
{{- if and .Values.auth.secret .Values.auth.admin }}
- {name: LANEWISE_ADMIN_API_KEY_FILE, value: /keys/admin-api-keys}
{{- end }}
{{- if and .Values.auth.secret .Values.auth.receipts }}
- {name: LANEWISE_RECEIPTS, value: /keys/receipts-key}
{{- end }}
{{- with .Values.storedPrompts }}
{{- if ne .kind "none" }}
- {name: LANEWISE_KV_STORE, value: /kv}
- {name: LANEWISE_KV_STORE_BYTES, value: {{ .size | quote }}}
{{- with .remote }}
- {name: LANEWISE_KV_STORE_REMOTE, value: {{ . | quote }}}
{{- end }}
{{- with .secret }}
- {name: LANEWISE_KV_STORE_KEY_FILE, value: /kv-key/kv-store-key}
{{- end }}
{{- if .encrypt }}
- {name: LANEWISE_KV_STORE_ENCRYPT, value: "on"}
{{- end }}
{{- end }}
{{- end }}
{{- if ne .Values.data.kind "none" }}
- {name: LANEWISE_DATA_DIR, value: /data}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ printf "LANEWISE_%s" (upper $name) }}, value: {{ $value | toString | quote }}}
{{- end }}
{{ include "lanewise.cache" . }}
{{- end -}}

{{- define "lanewise.cache" -}}
- {name: HF_HOME, value: /models}
- {name: XDG_CACHE_HOME, value: /cache}
{{- with .Values.model.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
{{- end }}
{{- end -}}

{{- define "lanewise.mounts" -}}
- {name: models, mountPath: /models{{ if .Values.model.volume.readOnly }}, readOnly: true{{ end }}}
- {name: cache, mountPath: /cache}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "lanewise.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "lanewise.resources" -}}
requests: {cpu: {{ .Values.cpu | quote }}, memory: {{ .Values.memory }}}
limits: {cpu: {{ .Values.cpu | quote }}, memory: {{ .Values.memory }}}
{{- end -}}
