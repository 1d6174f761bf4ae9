"""What `pip install .` runs: it refuses, because modules named train, envs and options would hide those of others."""


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    """Asked first by pip (PEP 517)."""
    raise SystemExit("not a package: run it from a checkout, after `pip install -r requirements.txt` (README.md)")


get_requires_for_build_editable = build_editable = get_requires_for_build_wheel
