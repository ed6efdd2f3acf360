# An nginx with a few sample blobs, on the same base as gpufeed, so that there is one image to pull.
ARG BASE=python:3.12-slim
# hadolint ignore=DL3006
FROM ${BASE}

# Any nginx does, and a pinned one is gone from the archive at Debian's next point release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends nginx \
    && rm -rf /var/lib/apt/lists/*

# 6 blobs of 64 MiB that do not compress, the same in every build; nginx.conf lists them as /manifest.txt.
RUN mkdir /blobs \
    && python3 -c 'for n in range(6): open(f"/blobs/blob-{n}.bin", "wb").write(__import__("random").Random(n).randbytes(2**26))'

COPY nginx.conf /etc/nginx/nginx.conf
# www-data, whose uid is the same in every Debian
USER 33:33
EXPOSE 8080
CMD ["nginx", "-e", "stderr", "-g", "daemon off;"]
