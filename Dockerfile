# distkv on CPUs: all its programs, in an environment that does not run as root. compose.yaml starts a cluster of it.
#   docker build -t llm-distkv .
#   docker run --rm llm-distkv distkv-instance --help
# PIP_EXTRA_INDEX_URL has torch without CUDA; empty takes the package index's own, which is some GB. With
# `--build-arg PIP_INDEX_URL=...` everything comes from a mirror: pip reads both from its environment.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_INDEX_URL=https://pypi.org/simple
# For the native kernels, which hold code for several generations of CPUs and choose at start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# What changes rarely comes first: torch is most of the image.
COPY constraints.txt ./
RUN grep -E '^(torch|setuptools)==' constraints.txt > first.txt \
    && python -m venv /opt/distkv \
    && /opt/distkv/bin/pip install --no-cache-dir -c constraints.txt -r first.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY distkv distkv
RUN /opt/distkv/bin/pip install --no-cache-dir --no-build-isolation -c constraints.txt . \
    && test -s "$(find /opt/distkv -name _native.so)"

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin distkv
COPY --from=build /opt/distkv /opt/distkv
ENV PATH=/opt/distkv/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /models
# The instances and the gateway of a cluster; what one of them has of its own is in compose.yaml.
EXPOSE 7070 8000
# Every program drains at SIGTERM, and gets it itself: commands are lists, without a shell between.
STOPSIGNAL SIGTERM
# Whether a gManager answers here; other programs have health checks of their own.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["distkv", "status"]
CMD ["distkv", "up"]
