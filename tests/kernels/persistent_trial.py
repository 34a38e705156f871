import ctypes, importlib.util, math, os, sys, threading, time
import torch
def load(path):
    spec = importlib.util.spec_from_file_location("_C", path); m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
SO = os.environ.get("LV_SO", "engine/_C.cpython-312-x86_64-linux-gnu.so")
C = load(SO)
REAL = dict(n_layers=36, hidden=2560, n_heads=32, n_kv_heads=8, head_dim=128, ffn=9728, n_codebooks=8, codebook_vocab=1026, context_rows=1100, rms_eps=1e-6)
TINY = dict(n_layers=3, hidden=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn=704, n_codebooks=8, codebook_vocab=1026, context_rows=512, rms_eps=1e-6)
WIDE = TINY | dict(head_dim=128, n_heads=6, hidden=320, n_layers=4)
MID = REAL | dict(n_layers=4, context_rows=600)
_w = {}
def weights(s):
    key = (s["hidden"], s["head_dim"])
    if key in _w: return _w[key]
    g = torch.Generator(device="cuda").manual_seed(1)
    H, D, F, q, k = s["hidden"], s["head_dim"], s["ffn"], s["n_heads"] * s["head_dim"], s["n_kv_heads"] * s["head_dim"]
    def m(r, c, scale=1.0): return (torch.randn(r, c, generator=g, device="cuda") * scale / math.sqrt(c)).bfloat16().cpu()
    a = 1 / math.sqrt(2 * s["n_layers"])
    w = dict(q=m(q, H), k=m(k, H), v=m(k, H), o=m(H, q, a), gate=m(F, H), up=m(F, H), down=m(H, F, a))
    n = lambda c: (1 + 0.1 * torch.randn(c, generator=g, device="cuda")).cpu()
    norms = dict(input_norm=n(H), post_norm=n(H), q_norm=n(D), k_norm=n(D))
    head = m(s["n_codebooks"] * s["codebook_vocab"], H, 0.2 * math.sqrt(H))
    fn = n(H) * torch.randn(H, generator=g, device="cuda").sign().cpu()
    _w[key] = (w, norms, head, fn)
    return _w[key]
def engine(s, precision, step, mod=None):
    e = (mod or C).Engine(sizes=s, precision=precision, device=0, step=step)
    w, norms, head, fn = weights(s)
    for l in range(s["n_layers"]):
        for n, t in w.items(): e.load_tensor(n, l, t)
        for n, t in norms.items(): e.load_values(n, l, t)
    e.load_tensor("head", 0, head); e.load_values("final_norm", 0, fn)
    f = 1e6 ** (-torch.arange(0, s["head_dim"], 2).double() / s["head_dim"])
    ang = torch.arange(s["context_rows"]).double()[:, None] * f
    e.load_values("rope", 0, torch.stack([ang.cos(), ang.sin()], -1).bfloat16().float().flatten().contiguous())
    e.finish_loading(); return e
def prefill(e, s, n=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    e.prefill(torch.randn(n, s["hidden"], generator=g).bfloat16(), torch.full((n, s["n_codebooks"]), -1, dtype=torch.int32), 0)
def logits(e, s):
    o = torch.empty(s["n_codebooks"], s["codebook_vocab"]); e.logits(o); return o
def speak(e, s, rows=40, n=13, seed=0, top_p=0.95):
    prefill(e, s, n, seed); e.start(0.8, False, 50, top_p, 11, 3, rows); out = []
    while len(out) < rows and (r := e.next_row()) is not None: out.append(r)
    return torch.tensor(out)
def same(s, precision, rows=40, positions=(13,)):
    a, b = engine(s, precision, "small"), engine(s, precision, "persistent")
    res = []
    for n in positions:
        prefill(a, s, n); prefill(b, s, n)
        d = [float((logits(a, s) - logits(b, s)).abs().max())]
        g = torch.Generator().manual_seed(5)
        for _ in range(4):
            row = torch.randint(0, 1024, (8,), generator=g, dtype=torch.int32); a.force(row); b.force(row)
            la, lb = logits(a, s), logits(b, s); d.append(float((la - lb).abs().max())); ok = bool(lb.isfinite().all())
        x, y = speak(a, s, rows, n), speak(b, s, rows, n)
        res.append((n, "logit diff", [f"{v:.1e}" for v in d], "finite", ok, "codes equal", x.shape == y.shape and bool(torch.equal(x, y)), tuple(y.shape)))
    print(s["hidden"], s["n_layers"], precision, *res, flush=True)
    return a, b
def tiny():
    for s in (TINY, WIDE):
        for p in ("fp8", "bf16"): a, b = same(s, p); a.unload(); b.unload()
def mid():
    for p in ("fp8", "bf16"): a, b = same(MID, p, 30, (1, 5, 13, 300)); a.unload(); b.unload()
def hard():
    for s, p in ((TINY, "fp8"), (MID, "fp8"), (MID, "bf16")):
        e = engine(s, p, "persistent"); want = speak(e, s)
        for seed in range(6):
            e.try_step(delay_seed=seed + 1, max_delay_ns=(300, 3000, 30000)[seed % 3]); t = time.time()
            print(p, "delays", seed, "equal", bool(torch.equal(speak(e, s), want)), f"{(time.time()-t)/40*1e3:.2f} ms/row", flush=True)
        e.try_step()
        # busy GPU
        x = torch.randn(8192, 8192, device="cuda"); st = torch.cuda.Stream()
        with torch.cuda.stream(st):
            for _ in range(60): x @ x
        t = time.time(); got = speak(e, s); print(p, "busy equal", bool(torch.equal(got, want)), f"{(time.time()-t)*1e3:.0f} ms", flush=True); torch.cuda.synchronize()
        # poison
        e.poison(); print(p, "poison equal", bool(torch.equal(speak(e, s), want)))
        # two engines, two threads
        f = engine(s, p, "persistent"); got = {}
        def run(k, m): got[k] = [torch.equal(speak(m, s), want) for _ in range(5)]
        ts = [threading.Thread(target=run, args=(k, m)) for k, m in enumerate((e, f))]; t = time.time(); [x.start() for x in ts]; [x.join() for x in ts]
        print(p, "two threads", got, f"{(time.time()-t)*1e3:.0f} ms", flush=True); f.unload()
        # expiry
        e.try_step(limit_ms=20, stall_ms=150)
        try: speak(e, s); print("NO ERROR")
        except RuntimeError as err: print(p, "expiry:", str(err)[:80], "|", e.step_reason(), flush=True)
        print(p, "after expiry equal", bool(torch.equal(speak(e, s), want)))
        e.unload()
        # stop
        e = engine(s, p, "persistent"); e.try_step(stall_ms=1500); prefill(e, s); e.start(0.8, False, 50, 1.0, 11, 3, 40)
        th = threading.Thread(target=lambda: [e.next_row() for _ in range(3)]); th.start(); time.sleep(0.1)
        t = time.time(); e.unload(); print(p, f"stop while stalled: {(time.time()-t)*1e3:.1f} ms", flush=True); th.join()
def timing(e, label, pos=(100, 500, 1000)):
    r = []
    for n in pos:
        e.time_steps(n, 8); v = sorted(e.time_steps(n, 8) for _ in range(9)); r.append(f"{v[4]:.4f}")
    print(label, *r, flush=True)
def real(p):
    t = time.time(); a, b = same(REAL, p, 40, (13, 400)); print(f"{time.time()-t:.1f} s")
    timing(a, f"{p} small     "); timing(b, f"{p} persistent"); a.unload(); b.unload()
    e = engine(REAL, p, "fastest"); print(e.step_reason()); e.unload()
def sweep(p):
    base = dict(LV_IN_FLIGHT="3", LV_COPIES="4", LV_WATCH="4", LV_SLOTS="13")
    for change in ({}, dict(LV_IN_FLIGHT="2"), dict(LV_IN_FLIGHT="4"), dict(LV_COPIES="1"), dict(LV_COPIES="8"), dict(LV_WATCH="1"), dict(LV_WATCH="8"), dict(LV_WATCH="32"), dict(LV_SLOTS="6")):
        os.environ.update(base | change); e = engine(REAL, p, "persistent"); timing(e, f"{p} {change}", (500,)); e.unload()
def trace(p, s=REAL, pos=500):
    lib = ctypes.CDLL(SO); e = engine(s, p, "persistent"); e.time_steps(pos, 8)
    t = torch.zeros(132, 40, 16, dtype=torch.int64, device="cuda")
    assert lib.lv_trace_to(ctypes.c_void_p(t.data_ptr())) == 0
    tot = 0; acc = 0
    for _ in range(4):
        ms = e.time_steps(pos, 1); x = t.cpu().double(); d = x[:, 2:35, 1:15] - x[:, 2:35, 0:14]; acc = acc + d; last = x
    acc = acc / 4 / 1980  # us
    x = last
    names = ["qkv in", "mul", "fin", "att q", "att", "att fin", "o in", "mul", "fin", "gu in", "mul", "fin", "d in", "mul"]
    has = acc[:128]
    print(p, f"traced {ms:.3f} ms; us a layer (mean; min over blocks of mean; max):")
    for i, n in enumerate(names): m = has[:, :, i].mean(1); print(f"  {n:8s} {m.mean():6.2f} {m.min():6.2f} {m.max():6.2f}")
    fin = (x[:, 3:36, 0] - x[:, 2:35, 14]) / 1980; print(f"  d fin    {fin.mean():6.2f}   layer {((x[:,35,0]-x[:,2,0])/33/1980).mean():.2f}")
    h = (x[:, 36, 1:3] - x[:, 36, 0:2]) / 1980; b = (x[:, 38, 1:4] - x[:, 38, 0:3]) / 1980
    print("  head in, mul:", h.mean(0).tolist(), " choose, embed, rest:", b.mean(0).tolist())
    e.unload()
def diag(s=TINY, p="fp8"):
    lib = ctypes.CDLL(SO); t = torch.zeros(132, 40, 16, dtype=torch.int64).pin_memory()
    assert lib.lv_trace_to(ctypes.c_void_p(t.data_ptr())) == 0
    def dump():
        time.sleep(6)
        for b in range(20):
            last = t[b].flatten().argmax().item(); print("block", b, "last mark: layer", last // 16, "mark", last % 16, "of", int((t[b] > 0).sum()))
        sys.stdout.flush(); os._exit(3)
    threading.Thread(target=dump, daemon=True).start()
    e = engine(s, p, "persistent"); prefill(e, s); e.force(torch.zeros(8, dtype=torch.int32)); print(logits(e, s).abs().mean()); time.sleep(8)
if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
