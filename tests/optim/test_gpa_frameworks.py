"""GPA, unchanged, under GradScaler, DistributedDataParallel, distributed checkpoints and the Transformers Trainer."""

import copy

import pytest
import torch
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from lowcomm.optim import GPAAdamW
from tests.optim.problems import START, equal, point
from tests.optim.ranks import OPTIONS, data, ddp_worker, net


@pytest.mark.parametrize("kernel", [{"foreach": True}, {"fused": True}])
def test_grad_scaler_skips_the_whole_step(kernel):
    """No _step_supports_amp_scaling: the scaler unscales and skips outside, so y and z can't get out of step."""
    p = point(START.float())
    optimizer = GPAAdamW([p], **OPTIONS, **kernel)
    optimizer.train()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale((p**2).sum()).backward()
        if step == 2:
            p.grad[0] = float("inf")
        y, before = p.detach().clone(), copy.deepcopy(optimizer.state_dict())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == 2:
            assert torch.equal(p, y)
            equal(optimizer.state_dict(), before)
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    q = point(START.float())
    plain = GPAAdamW([q], **OPTIONS, **kernel)
    plain.train()
    for _ in range(3):
        q.grad = 2 * q.detach()
        plain.step()
    assert torch.equal(p, q)


def test_ddp(tmp_path):
    mp.spawn(ddp_worker, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    model = net()
    optimizer = GPAAdamW(model.parameters(), **OPTIONS)
    optimizer.train()
    for step in range(5):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
    optimizer.eval()
    for a, b, p in zip(first, second, model.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, p.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributed_checkpoint_state(dtype):
    """torch.distributed.checkpoint names the state by parameter, and steps an empty optimizer once to lay it out."""
    model, twin = net().to(dtype), net().to(dtype)
    optimizer, other = (GPAAdamW(m.parameters(), **OPTIONS) for m in (model, twin))
    optimizer.train()
    other.train()
    for step in range(3):
        optimizer.zero_grad()
        model(data(step).to(dtype)).square().mean().backward()
        optimizer.step()
    state = get_optimizer_state_dict(model, optimizer)
    assert {"z", "exp_avg", "exp_avg_sq", "step"} <= state["state"]["0.weight"].keys()
    twin.load_state_dict(model.state_dict())
    set_optimizer_state_dict(twin, other, state)
    equal(other.state_dict()["state"], optimizer.state_dict()["state"])


def llama():
    torch.manual_seed(0)
    size = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=2, num_key_value_heads=2))


def trainer(folder, steps, model=None, **arguments):
    model = llama() if model is None else model
    generator = torch.Generator().manual_seed(0)
    rows = [{"input_ids": (ids := torch.randint(0, 32, (12,), generator=generator)), "labels": ids} for _ in range(16)]
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        save_steps=3,
        save_strategy="steps",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **arguments,
    )
    optimizer = GPAAdamW(model.parameters(), **OPTIONS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    return Trainer(model, args, train_dataset=rows, eval_dataset=rows, optimizers=(optimizer, scheduler))


@pytest.mark.parametrize("evaluate", [False, True])
def test_transformers_trainer(tmp_path, evaluate):
    """Steps at y, evaluates at x; a run resumed from its checkpoint, saved at y or at x, is the unbroken one."""
    arguments = {"eval_strategy": "steps", "eval_steps": 1} if evaluate else {}
    unbroken = trainer(tmp_path / "unbroken", 6, **arguments)
    unbroken.train()
    trainer(tmp_path / "broken", 3, **arguments).train()
    resumed = trainer(tmp_path / "broken", 6, **arguments)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.optimizer.optimizer.param_groups[0]["train_mode"] is not evaluate
    assert unbroken.state.global_step == resumed.state.global_step == 6
    for p, q in zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    equal(unbroken.optimizer.state_dict(), resumed.optimizer.state_dict())
    start = llama().state_dict()
    assert all(not torch.equal(p, start[name]) for name, p in unbroken.model.named_parameters())


def test_evaluating_under_the_trainer_does_not_change_training(tmp_path):
    found = []
    for arguments in ({}, {"eval_strategy": "steps", "eval_steps": 1}):
        run = trainer(tmp_path / str(len(found)), 4, **arguments)
        run.train()
        run.optimizer.train()
        found.append([p.detach().clone() for p in run.model.parameters()])
        if arguments:
            run.optimizer.eval()
            x = [p.detach().clone() for p in run.model.parameters()]
            losses = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
            assert losses[-1] == pytest.approx(run.evaluate()["eval_loss"], abs=0)
            assert all(torch.equal(p, w) for p, w in zip(run.model.parameters(), x, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
