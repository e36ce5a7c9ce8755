"""The one typed configuration tree: YAML in, frozen pydantic models out, all problems reported at once.

Each area has its own file here; `RunConfig` puts them together. Nothing here starts, imports or touches anything.
"""

from computerrl.common.config.actor import (
    SERVICES,
    ActorConfig,
    AgentConfig,
    Coordinates,
    EndpointConfig,
    PromptConfig,
    TeacherConfig,
)
from computerrl.common.config.broker import BrokerConfig
from computerrl.common.config.cluster import ClusterConfig
from computerrl.common.config.curriculum import CurriculumConfig, RolloutsConfig
from computerrl.common.config.desktop import DesktopConfig
from computerrl.common.config.hosts import HostList, load_hosts
from computerrl.common.config.learner import (
    AlgorithmConfig,
    EntropulseConfig,
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    RecipeConfig,
    RewardConfig,
)
from computerrl.common.config.model import ModelConfig
from computerrl.common.config.players import of_teacher
from computerrl.common.config.run import (
    Actions,
    RunConfig,
    SupervisorConfig,
    TasksConfig,
    Wordings,
    load_config,
    played_by_teacher,
    player_name,
)
from computerrl.common.config.site import NodeKind, SiteProfile, load_site

__all__ = [
    "SERVICES",
    "Actions",
    "ActorConfig",
    "AgentConfig",
    "AlgorithmConfig",
    "BrokerConfig",
    "ClusterConfig",
    "Coordinates",
    "CurriculumConfig",
    "DesktopConfig",
    "EndpointConfig",
    "EntropulseConfig",
    "HostList",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "NodeKind",
    "OptimizerConfig",
    "PromptConfig",
    "RecipeConfig",
    "RewardConfig",
    "RolloutsConfig",
    "RunConfig",
    "SiteProfile",
    "SupervisorConfig",
    "TasksConfig",
    "TeacherConfig",
    "Wordings",
    "load_config",
    "load_hosts",
    "load_site",
    "of_teacher",
    "played_by_teacher",
    "player_name",
]
