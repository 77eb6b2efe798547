"""One process of a sweep, run by the tests: what, where, on how many devices."""

import sys

import jax
import jax.monitoring
import numpy as np

import fdp_jax as fdp

RANDOM = np.random.default_rng(5)
COUNT = 60
SCALES = RANDOM.uniform(0.5, 3.0, COUNT)
SCALES[7] = -1.0
DELTAS = 10 ** RANDOM.uniform(-9, -3, COUNT)


def swept(folder=None, **options):
    """A sweep that takes no time."""
    return fdp.sweep(
        lambda noise_multiplier: fdp.Gaussian(noise_multiplier),
        fdp.sweeps.Columns(noise_multiplier=SCALES, at=DELTAS),
        queries={"epsilon": {"delta": "at"}, "advantage": {"epsilon": 0.0}},
        gradients=["noise_multiplier"],
        folder=folder,
        chunk_size=7,
        **options,
    )


def main(folder, out, devices, address="", count="1", index="0"):
    """Runs the sweep and writes what this process sees of the result."""
    jax.config.update("jax_num_cpu_devices", int(devices))
    compiled = []

    def listen(event, duration_secs, **named):
        if event.endswith("backend_compile_duration"):
            compiled.append(named.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    if address:
        jax.distributed.initialize(
            address, num_processes=int(count), process_id=int(index)
        )
    found = swept(None if folder == "-" else folder)
    assert found.complete
    table: dict = found.table
    np.savez(out, **table)
    assert list(found.refused) == [7], found.refused
    print(*compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
