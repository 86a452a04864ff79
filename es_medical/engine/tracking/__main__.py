"""`python -m es_medical.engine.tracking send SPOOL --uri URI`."""

import sys

from .resend import main

sys.exit(main())
