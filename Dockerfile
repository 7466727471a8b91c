# The image of head, workers and driver (configs/kuberay). Build it with: docker build -t corpusmill:2026.11.0 .
# Versions are those of constraints.txt, which the tests use. fastText and KenLM are compiled in the first stage.
FROM python:3.11-slim AS build
# hadolint ignore=DL3008  # Debian keeps one version of each package; a pinned version disappears with the next fix
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE.md ./
COPY config_files config_files
COPY configs configs
COPY loader loader
COPY pipeline pipeline
COPY shardwriter shardwriter
COPY stages stages
COPY storage storage
COPY terminal_output terminal_output
COPY training training
RUN pip install --no-cache-dir --constraint constraints.txt ".[pipeline]"

FROM python:3.11-slim
# KubeRay's own commands in a pod are written for bash, and its default probes use wget.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 corpusmill \
    && install --directory --owner=1000 --group=1000 /data
# Libraries go into the system's Python: KubeRay starts login shells, which reset a PATH that the image sets.
COPY --from=build /usr/local/lib/python3.11/site-packages /usr/local/lib/python3.11/site-packages
COPY --from=build /usr/local/bin /usr/local/bin
ENV RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/corpusmill
CMD ["corpusmill", "--help"]
