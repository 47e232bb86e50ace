"""Settings that every service has. Each service's own `settings.py` adds its fields.

`DIPTYCH_<SERVICE>__<FIELD>` in the environment wins over table `[<service>]` of an optional `diptych.toml`.
"""

from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from services.core.fault_plan import FaultPlan, Plant


class ServiceSettings(BaseSettings):
    """Frozen once read."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__")

    listen: str = "127.0.0.1:0"
    """Address of the gRPC server; port 0 takes a free one. Loopback unless told otherwise."""
    advertise: str = ""
    """Address that others dial, when it differs from `listen`; port 0 means the one that was taken."""
    name: str = ""
    """Unique among the processes of this service; made up when empty."""
    nats_url: str = ""
    """Where processes find each other; empty works with static addresses only."""
    token: SecretStr = SecretStr("")
    """Shared by all processes of a cluster; internal calls without it are refused. Empty: no check."""
    metrics_port: int | None = 0
    """Port of /metrics on the listen host; 0 takes a free one, none switches it off."""
    drain_seconds: float = Field(default=10.0, ge=0)
    """How long requests in flight may take to finish after SIGTERM."""
    session_timeout: float = Field(default=5.0, gt=0)
    """Seconds of silence after which a session counts as lost."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    collector: str = ""
    """OTLP/gRPC address of the local cluster's trace collector, beside `otlp_endpoint`."""
    otlp_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """The standard endpoint; when set, spans go there over OTLP/gRPC."""
    exit_with_parent: bool = False
    """Stop when standard input reaches its end: whoever started this process is gone."""
    profile: Literal["production", "test"] = "production"
    faults: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    """What goes wrong on purpose, by seam: seconds of delay, or what `core/fault_plan.py` knows; refused unless the
    profile is `test`."""

    @field_validator("faults")
    @classmethod
    def _faults_are_possible(cls, faults: dict[str, Plant]) -> dict[str, Plant]:
        FaultPlan(faults)
        return faults

    @model_validator(mode="after")
    def _faults_need_the_test_profile(self) -> Self:
        if self.faults and self.profile != "test":
            raise ValueError("faults can be planted only with profile = test")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml_file = settings_cls.model_config.get("toml_file")
        if not toml_file:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load(settings_type: type[SettingsT], service: str, toml: Path = Path("diptych.toml")) -> SettingsT:
    """The settings of `service` from the environment and the file.

    Exits with one readable line per wrong field; values are not shown, for one of them may be the token.
    """
    config = SettingsConfigDict(env_prefix=f"DIPTYCH_{service.upper()}__")
    if toml.exists():
        config |= SettingsConfigDict(toml_file=toml, toml_table_header=(service,))
    scoped: type[SettingsT] = type(
        settings_type.__name__, (settings_type,), {"model_config": config, "__module__": __name__}
    )
    try:
        return scoped()
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()]
        raise SystemExit(f"{service}: settings are wrong\n" + "\n".join(lines)) from None
