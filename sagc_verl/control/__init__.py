"""The group-size controller: numpy only, no veRL.

Read in this order: groups (what is observed), event (which groups straggle), risk (how likely at each size),
constraint (what the budget is spent on), rules (which size to play), controller (when to move). config and sizes say
what a user may set.
"""

from __future__ import annotations

from sagc_verl.control.config import (
    ConfigError,
    SagcConfig,
    config_hash,
    config_table,
    default_settings,
    parse_config,
)
from sagc_verl.control.constraint import CONSTRAINTS, Constraint
from sagc_verl.control.controller import Controller, StateError, StepReport
from sagc_verl.control.event import EventModel, GroupEvents
from sagc_verl.control.groups import GroupBatch
from sagc_verl.control.risk import RISKS, RiskModel, subset_risk
from sagc_verl.control.rules import RULES, Rule
from sagc_verl.control.sizes import SizePlan, ladder, resolve_sizes
from sagc_verl.control.utility import UTILITIES, Utility

__all__ = [
    "CONSTRAINTS",
    "RISKS",
    "RULES",
    "UTILITIES",
    "ConfigError",
    "Constraint",
    "Controller",
    "EventModel",
    "GroupBatch",
    "GroupEvents",
    "RiskModel",
    "Rule",
    "SagcConfig",
    "SizePlan",
    "StateError",
    "StepReport",
    "Utility",
    "config_hash",
    "config_table",
    "default_settings",
    "ladder",
    "parse_config",
    "resolve_sizes",
    "subset_risk",
]
