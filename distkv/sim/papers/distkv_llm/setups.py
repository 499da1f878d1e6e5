"""What 000 evaluates with: models, GPUs and how they are divided (Table 2, Fig. 8)."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from distkv.sim.baselines.single import single_of
from distkv.sim.papers.clusters import cluster
from distkv.sim.profiles import built_in as named
from distkv.sim.profiles.hardware import NetworkName
from distkv.sim.spec import SimSpec

NETWORK: NetworkName = "infiniband"
"""Between hosts: §5 has RDMA, without a rate."""


class Setup(msgspec.Struct, frozen=True):
    """Instances of a built-in profile. normal_tokens: the longest normal request of its datasets; long ones are up to
    twice as long."""

    title: str
    profile: str
    instances: int
    normal_tokens: int

    @property
    def stages(self) -> int:
        """Hosts over which one instance over all GPUs is pipelined."""
        return named.instance(named.over_all(self.profile, self.gpus)).stages

    @property
    def gpus(self) -> int:
        return self.instances * named.instance(self.profile).gpus

    def spec(self) -> SimSpec:
        """DistKV-LLM, and vLLM-v2: one instance over all GPUs."""
        single = single_of(self.profile, self.instances, network=NETWORK)
        return replace(cluster(self.profile, self.instances, "contract", network=NETWORK), single=single)


SETUPS = (
    Setup("7B, 2 GPUs", "a100-llama2-7b", 2, 100_000),
    Setup("13B, 4 GPUs", "a100-llama2-13b", 2, 140_000),
    Setup("70B, 8 GPUs", "a100-llama2-70b", 2, 300_000),
    Setup("13B, 8 GPUs", "a100-llama2-13b", 4, 240_000),
    Setup("7B, 16 GPUs", "a100-llama2-7b", 16, 600_000),
    Setup("7B, 32 GPUs", "a100-llama2-7b", 32, 950_000),
)
"""Rows of Table 2; datasets 1 to 6 have 1 % long requests, 7 to 12 10 %, 13 to 18 30 %."""
SHARES = (1, 10, 30)
"""Of long requests, in per cent, as printed."""


def dataset_of(setup: int, share: int) -> str:
    """The dataset of a setup and a share of long requests, by their places."""
    return f"distkv-{len(SETUPS) * share + setup + 1}"
