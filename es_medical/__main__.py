"""`python -m es_medical`: the command `es-medical`."""

from es_medical.cli import main

if __name__ == "__main__":
    main()
