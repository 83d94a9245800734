# guerdon with its tests and benchmarks, for a machine with NVIDIA GPUs and the NVIDIA Container Toolkit:
#
#   docker build --file examples/gpu.Dockerfile --tag guerdon .
#   docker run --rm --gpus all --shm-size 16g --volume "$PWD/out:/out" guerdon
#
# torch brings CUDA's libraries; the toolkit adds the driver. vLLM pins a version of torch, and is not part of it.

FROM python:3.12-slim-bookworm

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics \
    MUJOCO_GL=egl

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git=1:2.* make=4.* libegl1=1.* libegl-mesa0=22.* libgl1-mesa-dri=22.* \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /guerdon
COPY . .
RUN make env-gpu

CMD ["make", "gpu-check", "OUT=/out/gpu_check.json"]
