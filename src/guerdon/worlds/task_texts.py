"""The 50 Meta-World tasks in words: what a language-conditioned policy or reward model is told.

Keys are Meta-World's names without their version. The sentences are our own, since Meta-World ships none;
tasks that differ only by an obstacle or a direction say so, so that no two sentences are equal. This module
does not know the simulator.

    TASK_TEXTS["window-close"]      # 'Close the window.'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TASK_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "assembly": "Pick up the ring by its handle and put it over the peg.",
        "basketball": "Put the basketball through the hoop.",
        "bin-picking": "Pick up the cube and move it into the other bin.",
        "box-close": "Pick up the lid and close the box with it.",
        "button-press": "Press the button on the front of the box.",
        "button-press-topdown": "Press the button down from above.",
        "button-press-topdown-wall": "Reach over the wall and press the button down from above.",
        "button-press-wall": "Reach around the wall and press the button on the front of the box.",
        "coffee-button": "Press the button on the coffee machine.",
        "coffee-pull": "Pull the mug away from the coffee machine.",
        "coffee-push": "Push the mug under the coffee machine.",
        "dial-turn": "Turn the dial half way round.",
        "disassemble": "Lift the ring off the peg.",
        "door-close": "Close the door.",
        "door-lock": "Lock the door by turning the lock clockwise.",
        "door-open": "Open the door.",
        "door-unlock": "Unlock the door by turning the lock counter-clockwise.",
        "drawer-close": "Close the drawer.",
        "drawer-open": "Open the drawer.",
        "faucet-close": "Close the faucet by turning its handle clockwise.",
        "faucet-open": "Open the faucet by turning its handle counter-clockwise.",
        "hammer": "Pick up the hammer and drive the nail into the wall.",
        "hand-insert": "Move the gripper into the hole.",
        "handle-press": "Press the handle down.",
        "handle-press-side": "Press the handle down from the side.",
        "handle-pull": "Pull the handle up.",
        "handle-pull-side": "Pull the handle up from the side.",
        "lever-pull": "Pull the lever up.",
        "peg-insert-side": "Pick up the peg and insert it sideways into the hole.",
        "peg-unplug-side": "Pull the peg sideways out of its hole.",
        "pick-out-of-hole": "Pick the puck out of the hole and bring it to the goal.",
        "pick-place": "Pick up the puck and place it at the goal.",
        "pick-place-wall": "Pick up the puck and place it at the goal behind the wall.",
        "plate-slide": "Slide the plate into the goal cabinet.",
        "plate-slide-back": "Slide the plate back out of the goal cabinet.",
        "plate-slide-back-side": "Slide the plate sideways out of the goal cabinet.",
        "plate-slide-side": "Slide the plate sideways into the goal cabinet.",
        "push": "Push the puck to the goal.",
        "push-back": "Pull the block back towards the robot to the goal.",
        "push-wall": "Push the puck around the wall to the goal.",
        "reach": "Move the gripper to the goal.",
        "reach-wall": "Move the gripper past the wall to the goal.",
        "shelf-place": "Pick up the block and place it on the shelf.",
        "soccer": "Kick the ball into the goal.",
        "stick-pull": "Pick up the stick, hook the thermos with it and pull it to the goal.",
        "stick-push": "Pick up the stick and push the thermos to the goal with it.",
        "sweep": "Sweep the block off the table.",
        "sweep-into": "Sweep the puck into the hole.",
        "window-close": "Close the window.",
        "window-open": "Open the window.",
    }
)
