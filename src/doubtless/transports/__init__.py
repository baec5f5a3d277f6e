"""Ways to act: each does one thing once and reports what it saw. Judging is the core's business."""
