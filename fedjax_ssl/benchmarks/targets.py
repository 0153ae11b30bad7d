"""Devices that programs can be compiled for without having one, and how their compilers are reached.

One process compiles for one target.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice

from fedjax_ssl.backend import Elsewhere
from fedjax_ssl.benchmarks.hlo import Part
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import UserError


class CompilerMissing(UserError):
    """A target's compiler is not installed, or is one for another JAX."""


class Target(NamedTuple):
    """A device as its compiler and the bounds see it."""

    title: str
    platform: str  # of the compiler: "cuda" or "tpu"
    topology: str  # for the compiler; of a GPU without the devices of a host
    extra: str  # of this package, which installs the compiler
    memory: int  # bytes that JAX fills by default
    bandwidth: float  # bytes per second to the device's memory
    peak: float  # operations per second of products of float32 in JAX's default precision: TF32, on a TPU bfloat16
    int8_peak: float  # likewise, of products of integers of 8 bits
    launch: float  # seconds between the starts of two kernels, at least; 0: the device starts them itself
    kinds: tuple[str, ...]  # what JAX calls the device
    most_devices: int  # that share a program
    cores: int  # a GPU's multiprocessors
    description: str = ""  # of a GPU, as XLA's text format has it
    flags: str = ""  # of XLA, beside those of every GPU

    @property
    def host_drives(self) -> bool:
        """The host starts every kernel, as on a GPU; a TPU runs a program on its own."""
        return self.platform == "cuda"

    def seconds(self, part: Part) -> float:
        """What a part of a program takes at least."""
        return part.seconds(self.launch, self.bandwidth, self.peak)

    @property
    def elsewhere(self) -> Elsewhere:
        """What is traced has to know of it."""
        platform = "gpu" if self.platform == "cuda" else "tpu"
        return Elsewhere(AbstractDevice(self.kinds[0], self.cores, platform), self.memory)


def _gpu(
    title: str,
    peak: float,
    int8_peak: float,
    bandwidth: float,
    capability: tuple[int, int],
    flags: str = "",
    **more: float,
) -> Target:
    """A GPU of NVIDIA, from what its data sheet and `cudaDeviceProp` say."""
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "threads_per_core_limit": 2048,
        "fpus_per_core": 128,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(bandwidth),
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        **more,
    }
    numbers = " ".join(f"{name}: {value}" for name, value in fields.items())
    description = (
        f"gpu_device_info {{ {numbers} cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }} }}\n"
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 } runtime_version { major: 12 minor: 9 patch: 0 }\n'
        f'device_description_str: "{title}"'
    )
    memory = int(0.75 * more["device_memory_size"])  # the share that JAX takes by default
    return Target(
        title,
        "cuda",
        topology="1x1",
        extra="aot-gpu",
        memory=memory,
        bandwidth=bandwidth,
        peak=peak,
        int8_peak=int8_peak,
        launch=3e-6,
        kinds=(title,),
        most_devices=8,
        cores=int(more["core_count"]),
        description=description,
        flags=flags,
    )


def _tpu(
    title: str, topology: str, memory: int, bandwidth: float, peak: float, int8_peak: float, kinds: tuple[str, ...]
) -> Target:
    """A TPU of Google, from its documentation."""
    return Target(
        title,
        "tpu",
        topology=topology,
        extra="aot-tpu",
        memory=memory,
        bandwidth=bandwidth,
        peak=peak,
        int8_peak=int8_peak,
        launch=0.0,
        kinds=kinds,
        most_devices=4,
        cores=1,
    )


TARGETS: dict[str, Target] = {
    "h100": _gpu(
        "NVIDIA H100 80GB HBM3",
        peak=495e12,
        int8_peak=1979e12,
        bandwidth=3.352e12,
        capability=(9, 0),
        shared_memory_per_core=233472,
        shared_memory_per_block_optin=232448,
        core_count=132,
        l2_cache_size=52428800,
        clock_rate_ghz=1.98,
        device_memory_size=84929347584,
    ),
    "a100": _gpu(
        "NVIDIA A100-SXM4-40GB",
        peak=156e12,
        int8_peak=624e12,
        bandwidth=1.555e12,
        capability=(8, 0),
        shared_memory_per_core=167936,
        shared_memory_per_block_optin=166912,
        core_count=108,
        l2_cache_size=41943040,
        clock_rate_ghz=1.41,
        device_memory_size=42297786368,
    ),
    "rtx4090": _gpu(
        "NVIDIA GeForce RTX 4090",
        peak=82.6e12,
        int8_peak=660.6e12,
        bandwidth=1.008e12,
        capability=(8, 9),
        threads_per_core_limit=1536,
        shared_memory_per_core=102400,
        shared_memory_per_block_optin=101376,
        core_count=128,
        l2_cache_size=75497472,
        clock_rate_ghz=2.52,
        device_memory_size=25393692672,
        # The default tiles of XLA's own products do not fit into its shared memory. A GPU that is there tries others.
        flags="--xla_gpu_enable_triton_gemm=false",
    ),
    "tpu-v5e": _tpu("TPU v5e", "v5e:2x2", 15 << 30, 0.819e12, 197e12, 394e12, ("TPU v5 lite", "TPU v5e")),
    "tpu-v6e": _tpu("TPU v6e", "v6e:2x2", 31 << 30, 1.64e12, 918e12, 1836e12, ("TPU v6 lite", "TPU v6e")),
}

# Of each platform: modules that its compiler consists of.
_MODULES = {
    "cuda": ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc", "nvidia.cublas", "nvidia.cudnn"),
    "tpu": ("libtpu",),
}


def environment(target: Target) -> Mapping[str, str]:
    """Variables that have to be set before JAX looks for its backends: no device, no questions to a cloud."""
    hidden = {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock is for the device
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),  # that there is no GPU is known
        # A program for another device cannot be loaded here, and compile times are to be those of compiling.
        "JAX_ENABLE_COMPILATION_CACHE": "0",
    }
    if target.platform == "tpu":
        return hidden
    # Without a GPU the compiler cannot try which tiles are fastest, and takes default ones.
    flags = os.environ.get("XLA_FLAGS", "")
    return {**hidden, "XLA_FLAGS": f"--xla_gpu_autotune_level=0 {target.flags} {flags}".strip()}


def check_compiler(name: str, target: Target) -> None:
    """Checks that a target's compiler is there.

    Raises:
        CompilerMissing: it is not, or it is one for another version of JAX.
    """
    missing = [module for module in _MODULES[target.platform] if not _installed(module)]
    if missing:
        raise CompilerMissing(
            f"--target {name} needs a compiler that is not installed ({', '.join(missing)}), and no device: "
            f"pip install 'fedjax_ssl[{target.extra}]', in a checkout pip install '.[{target.extra}]'"
        )
    if target.platform == "cuda":
        plugin, jaxlib = map(importlib.metadata.version, ("jax-cuda12-plugin", "jaxlib"))
        if plugin != jaxlib:
            raise CompilerMissing(
                f"--target {name} needs jax-cuda12-plugin {jaxlib}, the version of jaxlib; installed is {plugin}. "
                f"pip install jax-cuda12-plugin=={jaxlib} jax-cuda12-pjrt=={jaxlib}"
            )


def target_of(device_kind: str) -> str | None:
    """The key of `TARGETS` of a device that JAX calls so; None where nothing is known of it."""
    return next((name for name, target in TARGETS.items() if device_kind in target.kinds), None)


def check_devices(name: str, count: int) -> None:
    """Checks that a program can be compiled for so many devices of a target.

    Raises:
        ConfigError: it cannot.
    """
    most = TARGETS[name].most_devices
    if not 1 <= count <= most:
        raise ConfigError(f"--devices is {count}; allowed for --target {name}: 1 to {most}, those of one host")


def devices(target: Target, count: int = 1) -> list[jax.Device]:
    """Devices of a target, to compile for and not to run on; `environment` is set.

    Raises:
        CompilerMissing: the compiler does not start.
    """
    options = {"topology_name": target.topology}
    if target.platform == "cuda":
        options = {"target_config": target.description, "topology": f"{target.topology}x{count}"}
    try:
        return list(topologies.get_topology_desc(platform=target.platform, **options).devices)[:count]
    except (RuntimeError, NotImplementedError) as error:  # JAX's own errors are RuntimeErrors
        raise CompilerMissing(
            f"the compiler of {target.title} does not start ({str(error).splitlines()[0]}); is another process "
            f"compiling, or is it one for another JAX? pip install --upgrade 'fedjax_ssl[{target.extra}]'"
        ) from error


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False
