# The image of a sandbox with a browser: the kernels' image, Debian's Chromium, and Playwright, which drives it.
# Chromium runs without its own sandbox, which needs user namespaces; see docs/security.md.
ARG BASE_IMAGE=kernelbroker-kernel
FROM ${BASE_IMAGE}
USER root
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      chromium fonts-droid-fallback fonts-liberation libatomic1 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 # It is setuid, and does nothing in a sandbox that gives no privileges.
 && rm -f /usr/lib/chromium/chrome-sandbox
COPY browser.txt /tmp/
RUN /opt/kernelbroker/env/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
      --only-binary :all: --require-hashes -r /tmp/browser.txt \
 && rm /tmp/browser.txt
ARG NAME=kernelbroker-browser
ARG VERSION=0
COPY sbom.py /tmp/
RUN /opt/kernelbroker/env/bin/python /tmp/sbom.py "$NAME" "$VERSION" /usr/share/kernelbroker/sbom.cdx.json && rm /tmp/sbom.py
USER 1000:1000
