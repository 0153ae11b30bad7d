"""The table of fields: ranges of numbers, defaults inside them, one message for what is outside."""

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import fields

TABLE = fields.FIELDS


@pytest.mark.parametrize("name", TABLE)
def test_every_number_has_a_range_that_its_default_is_in(name: str) -> None:
    default, check, *_ = TABLE[name]
    kind = default if isinstance(default, type) else type(default)
    assert check is not None or kind not in (int, float)
    configs.check_field(name, None if isinstance(default, type) else default)
    if check is not None:
        with pytest.raises(configs.ConfigError, match=rf"^config\.{name} is -7"):
            configs.check_field(name, -7)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("eval_every", 0, "config.eval_every is 0; it must be a whole number of at least 1"),
        ("data.test_fraction", 1.0, r"config.data.test_fraction is 1.0; it must be a number in \[0, 1\)"),
        ("data.left_out_client", -1, "left_out_client is -1; it must be a whole number of at least 0"),
        ("optimizer.momentum", 1.0, r"config.optimizer.momentum is 1.0; it must be a number in \[0, 1\)"),
        ("optimizer.weight_decay", float("inf"), "weight_decay is inf; it must be a number of at least 0"),
        ("federated.weighting", "labeled", "weighting is 'labeled'. Did you mean 'labelled'"),
        ("partition.name", "idd", "config.partition: unknown partition 'idd'. Did you mean 'iid'"),
    ],
)
def test_what_is_outside_is_refused_before_data_are_loaded(field: str, value, message: str) -> None:
    config = configs.default()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(configs.ConfigError, match=message):
        configs.resolve(config)


@pytest.mark.parametrize("method", sorted(methods.available()))
def test_every_setting_of_a_method_can_be_given(method: str) -> None:
    """Also those that are None until they are: a value of their type is taken, one of another type is not."""
    config = fields.default(method)
    for setting, option in methods.METHODS.options(method).items():
        if option.default is None:
            config.method[setting] = {int: 3, float: 0.5, str: "a", bool: True}[option.type]
            assert config.method[setting] is not None
            with pytest.raises(TypeError):
                config.method[setting] = {"another": "type"}
