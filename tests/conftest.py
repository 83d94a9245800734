"""What every test runs under: no screen, one thread per library, no compiler.

Set before anything imports torch or MuJoCo, which read these once.
"""

import os

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["COLUMNS"] = "120"
for name in ("DEBUG_IMAGE_SAVE_DIR", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)
