"""Prints torch_reference.h: final values of torch.optim runs on small exact inputs.

Run with a Python that has PyTorch 1.13 or newer:  python3 tests/optim/torch_reference.py > tests/optim/torch_reference.h
Inputs are sixteenths, so that every floating-point type holds them exactly; the test makes the same ones.
"""

import torch

COUNT = 7
STEPS = 4
LEARNING_RATES = [0.5, 0.25, 0.125, 0.0625]


def weight(i):
    return ((i * 37) % 23 - 11) / 16


def gradient(step, i):
    return ((i * 29 + step * 13) % 31 - 15) / 16


def run(make_optimizer, dtype, gradient_scale, decoupled_decay=0.0):
    parameter = torch.tensor([weight(i) for i in range(COUNT)], dtype=dtype, requires_grad=True)
    optimizer = make_optimizer([parameter])
    for step in range(STEPS):
        rate = LEARNING_RATES[step]
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor([gradient(step, i) for i in range(COUNT)], dtype=dtype) * gradient_scale
        with torch.no_grad():
            parameter.mul_(1 - rate * decoupled_decay)
        optimizer.step()
    return parameter, optimizer.state[parameter]


def show(name, kind, values):
    body = ", ".join(repr(float(value)) for value in values)
    print(f"inline constexpr {kind} {name}[] = {{{body}}};")


def main():
    print("// Made by torch_reference.py with PyTorch %s; do not edit." % torch.__version__)
    print("#pragma once\n\nnamespace strait::optim {\n")
    for dtype, kind, suffix in ((torch.float64, "double", "Double"), (torch.float32, "float", "Float")):
        parameter, state = run(
            lambda p: torch.optim.AdamW(p, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1), dtype, 0.5)
        show(f"kAdamWWeights{suffix}", kind, parameter)
        show(f"kAdamWFirst{suffix}", kind, state["exp_avg"])
        show(f"kAdamWSecond{suffix}", kind, state["exp_avg_sq"])
        parameter, state = run(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.75), dtype, 0.5, 0.125)
        show(f"kSgdWeights{suffix}", kind, parameter)
        show(f"kSgdMomentum{suffix}", kind, state["momentum_buffer"])
    print("\n}  // namespace strait::optim")


main()
