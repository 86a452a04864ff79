# CPU:  docker build -t es_medical .
# CUDA: docker build --build-arg BASE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime -t es_medical:cuda .
# Use:  docker run --rm -v "$PWD:/work" es_medical train fastmri_synthetic --demo      (--gpus all for CUDA)
ARG BASE=python:3.12-slim
FROM ${BASE}
COPY pyproject.toml README.md LICENSE /src/
COPY es_medical /src/es_medical
COPY data_prep /src/data_prep
COPY bundles /src/bundles
# torch of the base is kept; without one the build for CPUs is installed
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '/src[demo,coils,ismrmrd,hdf5,dicom]' \
    && useradd --create-home --uid 1000 user && mkdir /work && chown 1000 /work
USER 1000
WORKDIR /work
ENTRYPOINT ["es-medical"]
CMD ["--help"]
