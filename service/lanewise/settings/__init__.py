"""Every knob once: a flag, a ``LANEWISE_…`` environment variable and a YAML key of the same name.

A field named ``kv_memory`` is the flag ``--kv-memory``, the variable ``LANEWISE_KV_MEMORY`` and the
key ``kv_memory`` of the file given with ``--config``. Flags win over variables, variables over the
file, the file over the default.
"""

from lanewise.settings.commands import (
    EVERY_SETTINGS,
    QUANTIZED_FORMATS,
    BatchSettings,
    BenchSettings,
    ChatSettings,
    CompareSettings,
    ConfigSettings,
    DoctorSettings,
    FamiliesSettings,
    InspectSettings,
    ListSettings,
    PackSettings,
    PerplexitySettings,
    PlanSettings,
    PullSettings,
    QuantizeSettings,
    RemoveSettings,
    ReportSettings,
    StoreSettings,
    VerifySettings,
)
from lanewise.settings.groups import grouped
from lanewise.settings.key_files import store_secret, with_keys_of_files
from lanewise.settings.kinds import MTP, SettingsError, parse_size
from lanewise.settings.knobs import (
    ComputeSettings,
    ModelSettings,
    Settings,
    SourceSettings,
    WeightSettings,
)
from lanewise.settings.reading import (
    add_arguments,
    flag_of,
    read_yaml,
    resolve,
    resolve_mapping,
    resolve_with_sources,
    shown_value,
    unknown_flags,
    unknown_variables,
    variable_of,
    variables_of_others,
)

__all__ = [
    "EVERY_SETTINGS",
    "MTP",
    "QUANTIZED_FORMATS",
    "BatchSettings",
    "BenchSettings",
    "ChatSettings",
    "CompareSettings",
    "ComputeSettings",
    "ConfigSettings",
    "DoctorSettings",
    "FamiliesSettings",
    "InspectSettings",
    "ListSettings",
    "ModelSettings",
    "PackSettings",
    "PerplexitySettings",
    "PlanSettings",
    "PullSettings",
    "QuantizeSettings",
    "RemoveSettings",
    "ReportSettings",
    "Settings",
    "SettingsError",
    "SourceSettings",
    "StoreSettings",
    "VerifySettings",
    "WeightSettings",
    "add_arguments",
    "flag_of",
    "grouped",
    "parse_size",
    "read_yaml",
    "resolve",
    "resolve_mapping",
    "resolve_with_sources",
    "shown_value",
    "store_secret",
    "unknown_flags",
    "unknown_variables",
    "variable_of",
    "variables_of_others",
    "with_keys_of_files",
]
