# seepage in a container without root and without a writable root file system. The build needs PyPI alone; with
# PyTorch's index of CPU builds the image is 1.2 GB in place of 6:
#
#   docker build -t seepage .
#   docker build -t seepage --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#   docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --network none --user "$(id -u):$(id -g)" \
#     -v "$PWD:/work" seepage audit --data photos --out leakage
FROM python:3.12-slim AS build
ARG TORCH_INDEX=""
RUN python -m venv /opt/seepage
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN if [ -n "$TORCH_INDEX" ]; then /opt/seepage/bin/pip install --no-cache-dir --no-compile \
      --index-url "$TORCH_INDEX" torch torchvision; fi
RUN /opt/seepage/bin/pip install --no-cache-dir --no-compile "/source[privacy,sign]" \
    && /opt/seepage/bin/pip uninstall --yes pip

FROM python:3.12-slim
COPY --from=build /opt/seepage /opt/seepage
RUN useradd --uid 10001 --no-create-home --home-dir /tmp seepage && mkdir /work && chown seepage /work
ENV PATH=/opt/seepage/bin:$PATH \
    HOME=/tmp \
    USER=seepage \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /work
ENTRYPOINT ["seepage"]
CMD ["--help"]
