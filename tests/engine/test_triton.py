"""The Triton kernels against torch's attention and matrix products in float64.

On a GPU as it is; on a CPU in Triton's interpreter (with Triton installed, and a numpy below 2.4,
which Triton 3.6's interpreter needs), in a process of its own.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import mostly_slow

from ouroboros.core.tree import TokenTree
from ouroboros.engine import triton_attention, triton_products
from ouroboros.engine.cache import LayerShape, ModelInfo, SharedSlots
from ouroboros.engine.masks import Layout, dense
from ouroboros.engine.tables import pack_jointly, unpack_jointly

ON_GPU = torch.cuda.is_available()
TRITON = triton_attention.triton is not None and os.environ.get("TRITON_INTERPRET") != "1"
INTERPRETER = TRITON and not (
    triton_attention.triton.__version__.startswith("3.6.")
    and np.lib.NumpyVersion(np.__version__) >= "2.4.0"
)
SHARED_BYTES = 227 << 10  # that a program can have on a Hopper
DEVICE = "cuda" if ON_GPU else "cpu"
BFLOAT16 = [torch.bfloat16] if ON_GPU else []  # the interpreter does not multiply it


@pytest.mark.skipif(
    not INTERPRETER or ON_GPU,
    reason="needs Triton and no GPU; Triton 3.6's interpreter also needs a numpy below 2.4",
)
@pytest.mark.parametrize("which", mostly_slow(["not slow", "slow"], quick=["not slow"]))
def test_the_kernels_in_tritons_interpreter(which):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", f"triton and {which}", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout[-4000:]


def normal(draw: torch.Generator, dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.randn(size, generator=draw).to(DEVICE, dtype)


def attention(query, key, value, **how) -> torch.Tensor:
    """torch's own in float64, [1, n, heads, width]."""
    group = query.shape[1] // key.shape[1]
    inputs = (one.double().repeat_interleave(group, 1) for one in (key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query.double(), *inputs, scale=0.3, **how).transpose(1, 2)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *BFLOAT16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "slots", "width"),
    mostly_slow(
        [
            (4, 2, 1, 64, 16),
            (14, 2, 5, 300, 32),
            (8, 8, 3, 130, 16),
            (7, 1, 40, 512, 64),
            (14, 2, 24, 200, 128),  # the width of the real shapes
            *([(56, 8, 100, 16384, 128), (32, 32, 256, 1536, 128)] if ON_GPU else []),
        ],
        quick=[(4, 2, 1, 64, 16), (14, 2, 5, 300, 32)],
    ),
)
def test_it_equals_torchs_own_attention(heads, kv_heads, n, slots, width, dtype):
    draw = torch.Generator().manual_seed(0)
    size = 3, kv_heads, max(1024, slots), width
    key, value = (normal(draw, dtype, *size)[1:2, :, :slots] for _ in range(2))
    query = normal(draw, dtype, 1, n, heads, width).transpose(1, 2)
    mask = torch.zeros(1, 1, n, slots, dtype=dtype, device=DEVICE)
    hidden = torch.rand(1, 1, n, slots, generator=draw).to(DEVICE) < 0.4
    hidden[..., slots // 2 :] = True  # whole parts that nobody sees
    hidden[..., 0] = False
    mask.masked_fill_(hidden, torch.finfo(dtype).min)
    assert triton_attention.fits(query, key, value, mask) == ON_GPU
    found = triton_attention.tree_attention(query, key, value, mask, 0.3)
    expected = attention(query, key, value, attn_mask=mask.double())
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)


JOINT = [  # cached tokens, missing tokens, parents of a tree, and how many of its nodes are cached
    (0, 3, (-1,), 0),
    (140, 0, (-1, 0, 0, 1, 1, 2, 3), 2),
    (70, 0, (-1, *range(40)), 0),
    (31, 2, (-1, 0, 0), 0),
    (5, 0, (-1,), 0),
]


@pytest.mark.triton
@pytest.mark.parametrize(
    "dtype", mostly_slow([torch.float32, torch.float16, *BFLOAT16], quick=[torch.float32])
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "window", "size"),
    mostly_slow(
        [
            (4, 2, 6, 16),
            *((*h, window, 64) for h in ((14, 2), (2, 2), (70, 1)) for window in (None, 6, 50)),
        ],
        quick=[(4, 2, 6, 16)],
    ),
)
def test_every_sequence_of_a_joint_call_attends_to_its_own_slots(
    heads, kv_heads, window, size, dtype
):
    """Each token by the table, among other sequences', against torch's with the sequence's mask.
    A call of 16 tokens has no place for the largest tree."""
    draw, width, device = torch.Generator().manual_seed(0), 16, torch.device(DEVICE)
    shape = LayerShape(kv_heads, width, width, dtype, device)
    types = None if window == 6 else ("full_attention", "sliding_attention")
    info = ModelInfo(999, window, types if window else None, 99, device, dtype, [shape])
    shared, parts = SharedSlots(info.layers), []
    for known, missing, parents, held in JOINT:
        if len(parents) > size:
            continue
        tree = TokenTree((1,) * len(parents), parents).with_logits_at(range(held, len(parents)))
        parts.append((shared.slab(256), Layout(known, [1] * missing, tree, held)))
    for pool in shared.whole.pools[shape]:
        pool.copy_(torch.randn(pool.shape, generator=draw))
    most = triton_attention.block_tokens(heads, kv_heads)
    spare = shared.whole.capacity - 1
    words = torch.from_numpy(pack_jointly(parts, info, size=size, most=most, spare=spare))
    _, _, _, slots, tables = unpack_jointly(words.to(device), info, size)
    query = torch.randn(1, size, heads, width, generator=draw).to(device, dtype).transpose(1, 2)
    key, value = (pool[:1, :] for pool in shared.whole.pools[shape])
    for kind, table in tables.items() if window == 50 else [("sliding_attention", tables)]:
        found, end = triton_attention.tree_attention(query, key, value, table, 0.3).double(), 0
        assert found.isfinite().all()
        for slab, layout in parts:
            reach_back = window if kind == "sliding_attention" else None
            own = replace(info, layer_types=None, sliding_window=reach_back)
            mask = dense(layout, own, chains=True)
            fed = len(layout.missing) + len(layout.tree) - layout.held
            start, end = end, end + fed
            inside = slice(slab.first, slab.first + layout.base + layout.held + fed)
            assert slots[start:end].tolist() == list(range(inside.stop - fed, inside.stop))
            seen = query[:, :, start:end], key[:, :, inside], value[:, :, inside]
            how = {"is_causal": fed > 1} if mask is None else {"attn_mask": mask.double()}
            expected = attention(*seen, **how)
            error = (found[:, start:end] - expected).norm() / expected.norm()
            assert error < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *BFLOAT16])
@pytest.mark.parametrize("int8", [True, False], ids=["int8", "plain"])
@pytest.mark.parametrize(
    ("rows", "depth", "outputs"),
    mostly_slow([(1, 96, 48), (5, 600, 70), (17, 64, 33), (70, 130, 16)], quick=[(17, 64, 33)]),
)
def test_every_block_gives_torchs_own_product(rows, depth, outputs, int8, dtype):
    """With depths and outputs that no block divides, of rows that are not behind one another."""
    draw = torch.Generator().manual_seed(0)
    x = normal(draw, dtype, 1, rows, 2 * depth)[..., :depth]
    bias, weight = normal(draw, dtype, outputs), normal(draw, dtype, outputs, depth)
    scale = None
    if int8:
        weight = torch.randint(-127, 128, (outputs, depth), generator=draw, dtype=torch.int8)
        weight, scale = weight.to(DEVICE), normal(draw, dtype, outputs).abs() / 64
    for own in (bias, None):
        right = torch.nn.functional.linear(x.double(), weight.double())
        right = right * (1 if scale is None else scale.double()) + (0 if own is None else own)
        found = triton_products.candidates(x, weight, scale, own)
        assert len(found) == 1 + len(triton_products.BLOCKS)
        found["as it is called"] = lambda own=own: triton_products.product(x, weight, scale, own)
        for name, compute in found.items():
            try:
                error = (compute().double() - right).norm() / right.norm()
            except triton_products.triton.OutOfResources:  # `product` leaves such a block out
                assert ON_GPU and dtype == torch.float32, name  # which takes twice the memory
                continue
            assert error < (1e-5 if dtype == torch.float32 else 1e-2), name


@pytest.mark.triton
def test_it_is_tried_where_it_is_to_run():
    assert triton_attention.why_no_kernel(torch.device(DEVICE), torch.float32, 32) is None


def test_a_launch_that_fails_is_a_reason(monkeypatch):
    def fails(*_):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(triton_attention, "triton", triton_attention.triton or object())
    monkeypatch.setattr(triton_attention, "tree_attention", fails)
    found = triton_attention.why_no_kernel(torch.device("cpu"), torch.float32, 32)
    assert found == "out of resource: shared memory"
    found = triton_attention.why_no_kernel(torch.device("cpu"), torch.float32, 4)
    assert found == "heads of width 4 are not supported"


BFLOAT = dict.fromkeys(
    ("query", "key", "value", "mask", "x", "weight", "scale", "bias", "out"), "*bf16"
)
FLOAT = dict.fromkeys(("sums", "tops", "totals"), "*fp32")
SHAPE = {"WIDTH": 128, "SLOTS": 64, "PRECISION": "tf32", "WHOLE": False, "HEAD": 6, "PARTS": 64}
SHAPE |= {"ROWS": 64, "OUTPUTS": 64, "DEPTH": 256, "JOINTLY": False, "bias": None}
KERNELS: dict[str, tuple] = {  # name, changed types and constants, options
    "attention": ("_attend", {"scale": "fp32"}, {}, {"num_stages": 2}),
    "joint": ("_attend", {"scale": "fp32", "mask": "*i32"}, {"JOINTLY": True}, {"num_stages": 2}),
    "join": ("_join", {}, {}, {}),
    "product": ("_multiply", {}, {"scale": None}, {"num_stages": 3}),
    "int8": ("_multiply", {"weight": "*i8"}, {}, {"num_stages": 3}),
}


@pytest.mark.skipif(not TRITON, reason="needs Triton, to compile with")
@pytest.mark.parametrize("kind", mostly_slow(KERNELS, quick=["joint", "int8"]))
def test_kernels_compile_for_a_gpu_that_is_not_here(kind, tmp_path):
    """As they are launched for real models in bfloat16 (strides and pointers are multiples of 16):
    in a Hopper's shared memory, and no register is spilt into local memory."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, types, constants, options = KERNELS[kind]
    kernel = getattr(
        triton_attention if kind in ("attention", "joint", "join") else triton_products, name
    )
    names, types, constants = kernel.arg_names, BFLOAT | FLOAT | types, SHAPE | constants
    constants = {n: value for n, value in constants.items() if n in names}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    sizes = ("query_", "key_", "value_", "mask_", "outputs", "depth")
    aligned = [n for n in names if signature[n][0] == "*" or n.startswith(sizes)]
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    found = triton_attention.triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, **options}
    )
    (tmp_path / "kernel.cubin").write_bytes(found.asm["cubin"])
    tool = Path(triton_attention.triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [tool, "--dump-resource-usage", tmp_path / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"LOCAL:(\d+)", said)[-1] == "0"
    assert found.metadata.shared <= SHARED_BYTES
