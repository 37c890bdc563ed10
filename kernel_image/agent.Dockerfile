# The image of a sandbox with one coding agent: the image for projects, and the agent from npm.
ARG CODE_IMAGE=kernelbroker-code
FROM ${CODE_IMAGE}
ARG AGENT
ARG VERSION=0
LABEL org.opencontainers.image.title="kernelbroker-${AGENT}" \
      org.opencontainers.image.description="A sandbox of kernelbroker with the coding agent ${AGENT}" \
      org.opencontainers.image.version="${VERSION}"
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
USER 1000:1000
