# The image of a sandbox with one coding agent: the image for projects, and the agent from npm.
ARG BASE_IMAGE=kernelbroker-code
FROM ${BASE_IMAGE}
ARG AGENT
USER root
COPY coding_agents/package.json /opt/coding-agent/all.json
# Of the pinned agents only this one. npm trusts what the image trusts.
RUN export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt \
 && cd /opt/coding-agent \
 && case "${AGENT}" in \
      claude-code) package=@anthropic-ai/claude-code ;; \
      gemini-cli) package=@google/gemini-cli ;; \
      opencode) package=opencode-ai ;; \
      *) echo "AGENT is claude-code, gemini-cli or opencode" >&2; exit 1 ;; \
    esac \
 && version=$(node -p "require('./all.json').dependencies['$package']") \
 && npm install --prefix /opt/coding-agent --cache /tmp/npm --no-audit --no-fund --no-save --loglevel error "$package@$version" \
 && rm -rf /tmp/npm all.json \
 && ln -s /opt/coding-agent/node_modules/.bin/* /usr/local/bin/
ENV KERNELBROKER_CODING_AGENT=${AGENT}
ARG NAME=kernelbroker-agent
ARG VERSION=0
COPY sbom.py /tmp/
RUN /opt/kernelbroker/env/bin/python /tmp/sbom.py "$NAME" "$VERSION" /usr/share/kernelbroker/sbom.cdx.json && rm /tmp/sbom.py
USER 1000:1000
