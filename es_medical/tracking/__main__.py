"""`python -m es_medical.tracking send SPOOL --uri URI`."""

import sys

from es_medical.tracking.resend import main

sys.exit(main())
