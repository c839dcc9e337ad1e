"""Two ranks for the DistributedDataParallel test, apart from it so that a rank imports little."""

import torch
import torch.distributed as dist
from torch import nn

from lowcomm.optim import GPAAdamW

OPTIONS = {"lr": 1e-2, "mu_x": 0.9, "weight_decay": 0.1}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def data(seed=1):
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))


def ddp_worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = GPAAdamW(model.parameters(), **OPTIONS)
    optimizer.train()
    for step in range(5):
        optimizer.zero_grad()
        model(data(step).chunk(2)[rank]).square().mean().backward()
        optimizer.step()
        optimizer.eval()
        optimizer.train()
    optimizer.eval()
    torch.save([p.detach() for p in model.parameters()], folder / f"{rank}.pt")
    dist.destroy_process_group()
