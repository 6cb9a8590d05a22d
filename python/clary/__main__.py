# SPDX-License-Identifier: Apache-2.0
"""``python -m clary doctor [--json]``"""

import argparse
import sys

from . import doctor


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m clary", description="Quantized attention: environment and self-test."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "doctor", help="environment, driver, kernels chosen, error of each kernel against float64"
    )
    command.add_argument("--json", action="store_true", help="the same as a JSON object")
    return doctor.run(parser.parse_args().json)


if __name__ == "__main__":
    sys.exit(main())
