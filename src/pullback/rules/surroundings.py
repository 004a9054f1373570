"""PB5xx: transforms and surroundings."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB501",
        "Tensors in a container argument are invisible to autograd",
        Severity.ERROR,
        "To PyTorch a list, tuple or dict of tensors is one opaque argument: the output doesn't require grad, in "
        "silence.",
        "Derive the class from pullback.Function, which tracks each tensor in what PyTorch's pytree registry knows "
        "(torch.export.register_dataclass adds a dataclass to it); or pass them as arguments of their own.",
    ),
    Rule(
        "PB502",
        "Tensors in a returned container are invisible to autograd",
        Severity.ERROR,
        "To PyTorch a list or dict returned from forward is one opaque output: its tensors don't require grad, in "
        "silence.",
        "Derive the class from pullback.Function, which tracks each tensor; or return a tuple of tensors.",
    ),
    Rule(
        "PB503",
        "A captured tensor requires grad",
        Severity.ERROR,
        "forward reads a tensor that requires grad and isn't an argument (a closure, a global, a module's parameter), "
        "so it never gets its gradient.",
        "Pass it as an argument.",
    ),
    Rule(
        "PB504",
        "The result depends on state outside the call",
        Severity.ERROR,
        "The same arguments give another result or gradient after other calls: something is kept on the class, in a "
        "module or in a cache.",
        "Keep what backward needs on ctx, one call at a time.",
    ),
    Rule(
        "PB505",
        "Empty or 0-d tensors fail",
        Severity.ERROR,
        "The last batch of an epoch may be empty, and a scalar is a tensor too; forward takes them and backward fails "
        "or returns another shape.",
        "Handle them, or refuse them in forward.",
    ),
    Rule(
        "PB506",
        "Special values give a wrong gradient",
        Severity.ERROR,
        "At zeros, ties, edges or infinities the gradient is NaN or otherwise not what the formula has there.",
        "Treat the point apart: torch.where on the argument before the formula, not on its result.",
    ),
    Rule(
        "PB507",
        "Forward mode and reverse mode disagree",
        Severity.ERROR,
        "A jvp is the same derivative as backward, read in the other direction: ⟨cotangent, jvp(tangent)⟩ is "
        "⟨backward(cotangent), tangent⟩. Where the two differ, one of them is wrong.",
        "Correct jvp, or delete it: without one, forward mode is derived from backward.",
    ),
    Rule(
        "PB508",
        "jvp fails",
        Severity.ERROR,
        "forward and backward work, and the jvp beside them raises: most often it reads ctx.saved_tensors, which hold "
        "what was given to save_for_forward and nothing else.",
        "Call ctx.save_for_forward with what jvp needs, or delete jvp: without one, forward mode is derived from "
        "backward.",
    ),
    Rule(
        "PB509",
        "vmap and a loop disagree",
        Severity.ERROR,
        "A batch through vmap is to give what a loop over its entries gives, in values and in gradients.",
        "Correct vmap, or delete it where forward and backward are made of PyTorch operations: they are batched as "
        "they are.",
    ),
    Rule(
        "PB510",
        "No batching rule",
        Severity.ERROR,
        "vmap runs forward on a batch of arguments at once. What leaves PyTorch (NumPy, raw pointers, kernels, item) "
        "can't take one.",
        "Write a vmap static method, or give a reference in plain PyTorch.",
    ),
    Rule(
        "PB511",
        "Forward mode can't be derived",
        Severity.ERROR,
        "Without a jvp, forward mode transposes backward, which takes a backward that is linear in grad_output and "
        "that autograd can follow.",
        "Write a jvp, or give a reference in plain PyTorch.",
    ),
    Rule(
        "PB512",
        "A traced call leaves PyTorch",
        Severity.ERROR,
        "torch.func.linearize, or make_fx around torch.func, writes down the operations of a call to run them again. "
        "What leaves PyTorch (NumPy, item, raw pointers) would be written down as the number that it was this once.",
        "Keep to PyTorch operations, or don't trace the call: use torch.func.jvp for torch.func.linearize.",
    ),
    Rule(
        "PB513",
        "A call that writes to its argument can't be batched",
        Severity.ERROR,
        "forward changes an argument in place (mark_dirty); under vmap the argument may be shared by the whole batch.",
        "Return a new tensor under vmap, or write a vmap static method.",
    ),
    Rule(
        "PB514",
        "A transform can't take the call",
        Severity.ERROR,
        "torch.func.functionalize has no rule for a Function, and vmap with randomness='error' none for one that draws "
        "random numbers.",
        "Use grad, vjp, jvp, jacrev, jacfwd, hessian or vmap, the last with randomness='different' or 'same'.",
    ),
    Rule(
        "PB515",
        "Compiled code gives something else",
        Severity.ERROR,
        "torch.compile runs Python once, with tensors that have no values, and writes down the operations: what a "
        "method does beside them is done once, not at all or in another order, and gradients are matched to arguments "
        "without the engine's checks.",
        "Look for the usual causes: torch.compiler.is_compiling(), is_leaf or the class of ctx asked for in a method; "
        "a value read from outside the call while it is traced; a write to a container or to the class; one tensor "
        "returned twice; a gradient too many or too few. Decide by arguments that aren't tensors; or put the call into "
        "a function under torch.compiler.disable.",
    ),
    Rule(
        "PB516",
        "A transform within compiled code",
        Severity.ERROR,
        "torch.compile over torch.func, or over forward mode, differentiates what it sees of forward, and drops the "
        "derivative that is written by hand. So the call is left to Python, which fullgraph=True doesn't allow.",
        "Compile without fullgraph=True, or differentiate by torch.autograd outside of the compiled function.",
    ),
    Rule(
        "PB517",
        "Autocast breaks or changes the gradient",
        Severity.ERROR,
        "Under autocast some operations of forward give bfloat16, so backward gets a bfloat16 gradient beside float32 "
        "saved tensors, and runs where nothing is cast for it.",
        "Declare cast_inputs = torch.float32 on a pullback.Function, so that it computes in float32 throughout, or "
        "keep_autocast = True, so that backward runs under forward's autocast state (torch.amp.custom_fwd and "
        "custom_bwd do the same for PyTorch's Function); or cast the gradient in backward.",
    ),
    Rule(
        "PB518",
        "Checkpointing breaks or changes the gradient",
        Severity.ERROR,
        "torch.utils.checkpoint runs forward again during backward, and hands what that second run saved to the ctx "
        "of the first, each saved tensor once. What the two runs do differently comes out as an error or a wrong "
        "gradient.",
        "Save the same tensors in the same order at every call, draw random numbers from torch's generator alone, and "
        "read ctx.saved_tensors once.",
    ),
    Rule(
        "PB519",
        "A copy of what was saved isn't enough",
        Severity.ERROR,
        "Saved-tensor hooks (offloading, compression, checkpointing) hand backward a tensor with the values of the one "
        "that was saved: another object in other memory, with other strides and without Python attributes.",
        "Use nothing but the values of a saved tensor; keep what else is needed, such as a flag or a key, on ctx.",
    ),
    Rule(
        "PB520",
        "Another thread changes the result",
        Severity.ERROR,
        "Calls in several threads share what lies outside the call: scratch memory on the class, globals, a current "
        "setting. And on a GPU backward always runs in another thread than forward, where thread-local values are "
        "missing.",
        "Make scratch memory inside the call, keep what backward needs on ctx, or hold a lock from the first use of "
        "what is shared to the last.",
    ),
    Rule(
        "PB521",
        "Autocast can't be arranged as declared",
        Severity.ERROR,
        "cast_inputs hands forward a copy of each argument that it casts, so that a write to one would be lost; and "
        "torch.amp.custom_bwd needs what custom_fwd leaves on ctx, which no forward beside setup_context gets.",
        "Return a new tensor where forward writes to an argument that is cast; in place of torch.amp's decorators, "
        "write cast_inputs or keep_autocast on the class.",
    ),
    Rule(
        "PB522",
        "A call seeds the generator of the whole program",
        Severity.ERROR,
        "torch.manual_seed, random.seed or torch.set_rng_state inside a call sets the one generator that everything "
        "draws from: initialisation, dropout and the order of the data then repeat themselves after each step.",
        "Draw from a torch.Generator of your own, or put the state back, as `with torch.random.fork_rng():` does.",
    ),
    Rule(
        "PB540",
        "A deprecated decorator of autocast",
        Severity.WARNING,
        "torch.cuda.amp.custom_fwd and custom_bwd are deprecated since PyTorch 2.4: each warns where it decorates, and "
        "both know CUDA alone.",
        'Write torch.amp.custom_fwd(device_type="cuda") and custom_bwd(device_type="cuda"), or declare cast_inputs on '
        "a pullback.Function.",
    ),
    Rule(
        "PB550",
        "A tensor is made in the default dtype or on the default device",
        Severity.WARNING,
        "torch.zeros and its like give float32 on the CPU, whatever the arguments are: on a GPU the call raises, with "
        "float64 arguments half of the digits are lost, with bfloat16 ones memory and time. In backward it is the CPU "
        "even where the caller has set another default device.",
        "Say both: torch.zeros(n, dtype=x.dtype, device=x.device), or x.new_zeros(n), or torch.zeros_like(x).",
    ),
)
