"""What every method does, in words: the one source of `isfed methods` and of docs/methods.md."""

from __future__ import annotations

from isfed.methods.catalogue_entry import (
    ALL,
    ALL_AGENTS,
    CANDIDATES,
    COOPERATIVE,
    EVERYBODY,
    ISFEDAVG,
    LOCAL,
    MEAN,
    PERIODIC,
    PULLED,
    RATIO,
    RISK,
    SGD,
    SHORTER,
    STICH,
    UNIFORM,
    WEIGHED,
    Entry,
    Knob,
)
from isfed.methods.catalogue_rivals import RIVALS

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        name="ISFedAvg", paper=ISFEDAVG,
        selects="L of K by inclusion probabilities that are learned, without replacement",
        steps="E_k steps over importance-sampled batches, divided by E_k K p_k",
        combines="mean over L, weights of Horvitz and Thompson",
        minimises=RISK + "; w^o for E_k = 1, and near it for more steps",
        needs="E_k, B_k and N_k of every agent; a score from every agent that answers",
        confirmed="the paper's Algorithm 1 by the letter, tests/test_literal.py",
        state="M + K",
    ),
    Entry(
        name="FedAvg", paper="McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017, "
        "arXiv 1602.05629, as in this library's paper",
        selects=UNIFORM, steps=SGD, combines="plain mean, or by size", minimises=PULLED,
        unbiased=RATIO,
        confirmed="google/fedjax fedjax/algorithms/fed_avg.py (mean of the changes by size)",
    ),
    Entry(
        name="DynamicFedAvg", paper="Rizk, Vlaski, Sayed 2020, arXiv 2002.08782",
        selects=UNIFORM, steps="E_k steps without replacement, divided by E_k",
        combines="plain mean over L, or by size", unbiased=RATIO,
        minimises=RISK + "; follows an optimum that drifts",
    ),
    Entry(
        name="LocalGD", paper="Khaled, Mishchenko, Richtarik 2019, arXiv 1909.04715",
        selects=EVERYBODY, steps="H full-batch steps", combines=MEAN,
        minimises="w^o for H = 1; for more a fixed point that leans to flatter risks",
        unbiased=ALL_AGENTS, confirmed=PERIODIC + ", with full batches",
        hears=ALL,
    ),
    Entry(
        name="LocalSGD", paper=STICH, selects=EVERYBODY, steps=LOCAL, combines=MEAN,
        minimises="as LocalGD, with noise", unbiased=ALL_AGENTS,
        confirmed=PERIODIC,
        hears=ALL,
    ),
    Entry(
        name="KAVG", paper="Zhou, Cong 2018, arXiv 1708.01012", selects=EVERYBODY, steps=LOCAL,
        combines=MEAN, minimises="as LocalGD, with noise", unbiased=ALL_AGENTS, confirmed=PERIODIC,
        hears=ALL,
    ),
    Entry(
        name="StichSGD", paper=STICH, selects=EVERYBODY,
        steps="H steps that fall as 4 / (strong (a + t))",
        combines="mean of the models; the output is an average of all steps, weighted (a + t)^2",
        minimises="w^o: the steps vanish", needs="strong convexity, a > max(16 condition, H)",
        unbiased=ALL_AGENTS,
        confirmed="epfml/sparsifiedSGD base_logistic.py, by the same author (a step that falls as "
        "1 / (strong (a + t)), and the share of a step in the mean weighted (a + t)^2; there the "
        "model after the step is counted, here, as in the paper, the one before); the average over "
        "agents as LocalSGD",
        hears=ALL,
    ),
    Entry(
        name="RestartedSGD", paper="Yu, Yang, Zhu 2019, arXiv 1807.06629", selects=EVERYBODY,
        steps="I steps, or I_k of its own for every agent",
        combines=MEAN + ", after the last step or before it",
        minimises="as LocalGD; with unequal I_k towards sum_k I_k P_k",
        needs="I_k, if they differ", unbiased="equal I_k: yes; unequal: no",
        confirmed="Ziyad-Benomar/Parallel-Restarted-SGD Core.cs (unequal steps, plain mean)",
        hears=ALL,
    ),
    Entry(
        name="MomentumSGD", paper="Yu, Jin, Yang 2019, arXiv 1905.03817", selects=EVERYBODY,
        steps="H steps with momentum, Polyak or Nesterov",
        combines="mean of the models and of the momenta", minimises="as LocalGD, with noise",
        needs="momentum", unbiased=ALL_AGENTS,
        confirmed="JYWa/Overlap_Local_SGD distoptim/EASGD.py (both forms of the step; that "
        "the momenta are averaged too is from the paper alone)",
        hears=ALL, knobs=(Knob("momentum", 0.1, 0.99, "linear"),),
    ),
    Entry(
        name="AdaptiveTau", paper="Wang, Tuor, Salonidis, Leung, Makaya, He, Chan 2019, "
        "arXiv 1804.05271",
        selects=EVERYBODY, steps="tau steps; tau is chosen anew every round",
        combines="weighted mean; the output is the best model seen", minimises="as LocalGD",
        needs="a budget, what a step and an average cost; gradients and risks of all agents",
        unbiased=ALL_AGENTS,
        confirmed="IBM/adaptive-federated-learning control_algorithm/adaptive_tau.py (h, G, T, the "
        "search up to 10 tau, the floors 1e-10 and 1e-5)",
        hears=ALL,
    ),
    Entry(
        name="CooperativeSGD", paper=COOPERATIVE, selects=EVERYBODY, steps="tau mini-batch steps",
        combines="models times a doubly stochastic W", minimises="as LocalGD, with noise",
        needs="W, auxiliary models", unbiased=ALL_AGENTS + SHORTER,
        confirmed="through its special cases below",
        hears=ALL,
    ),
    Entry(
        name="FullySynchronousSGD", paper=COOPERATIVE, selects=EVERYBODY, steps="one step",
        combines="mean of the models", minimises="w^o", unbiased=ALL_AGENTS,
        confirmed="JYWa/MATCHA communicator.py (a mean in every step)",
        hears=ALL,
    ),
    Entry(
        name="PeriodicAveraging", paper=COOPERATIVE, selects=EVERYBODY, steps="tau steps",
        combines="mean of the models", minimises="as LocalGD, with noise", unbiased=ALL_AGENTS,
        confirmed=PERIODIC,
        hears=ALL,
    ),
    Entry(
        name="DecentralisedSGD", paper=COOPERATIVE, selects=EVERYBODY, steps="one step",
        combines="every agent averages with its neighbours",
        minimises="near w^o: agents stay apart by their gradients", needs="the graph W",
        unbiased=ALL_AGENTS,
        confirmed="JYWa/MATCHA communicator.py (alpha for each neighbour, the rest for itself)",
        hears=ALL,
    ),
    Entry(
        name="ElasticAveraging", paper=COOPERATIVE + "; Zhang, Choromanska, LeCun 2015",
        selects=EVERYBODY, steps="tau steps",
        combines="an anchor pulls the agents and is pulled by them",
        minimises="near w^o: agents stay apart by their gradients", needs="the pull alpha",
        unbiased=ALL_AGENTS + SHORTER,
        confirmed="JYWa/Overlap_Local_SGD distoptim/EASGD.py (the matrix W, by algebra)",
        hears=ALL,
    ),
    Entry(
        name="FedAvgScheme", paper="Li, Huang, Yang, Wang, Zhang 2020, arXiv 1907.02189",
        selects="I: L draws by c_k with replacement; the others: " + UNIFORM, steps=SGD,
        combines="I, transformed II: plain mean; II: K/L sum c_k x_k; original: the "
        "missing weight stays on w",
        minimises=PULLED, unbiased="I, II, transformed II: yes; original: a shorter step",
        confirmed="lx10077/fedavgpy src/trainers/fedavg4.py, fedavg5.py, fedavg9.py (all four)",
    ),
    Entry(
        name="FedProx", paper="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, arXiv 1812.06127",
        selects="L of K, uniform or by c_k",
        steps="E_k steps on P_k(x) + prox/2 |x - w|^2; slow agents do fewer",
        combines="mean over those that answer", minimises=PULLED + ", less for a larger prox",
        needs="prox", unbiased=RATIO,
        confirmed="litian96/FedProx flearn/trainers/fedprox.py, flearn/optimizer/pgd.py (step, "
        "selection, stragglers)",
        knobs=(Knob("prox", 1e-3, 1.0),),
    ),
    Entry(
        name="FedAsync", paper="Xie, Koyejo, Gupta 2019, arXiv 1903.03934",
        selects="one agent at a time, as it comes back",
        steps="E_k proximal steps from an old version of the model",
        combines="w <- (1 - a) w + a x, a smaller for older versions",
        minimises=PULLED + "; with an event queue also to fast agents",
        needs="mixing, how its weight falls with age",
        unbiased="no: a step of size a, and by speed",
        confirmed="TL-System/plato plato/servers/strategies/aggregation/fedasync.py; APPFL/APPFL "
        "fedasync_aggregator.py (the three staleness functions)",
        knobs=(Knob("mixing", 0.1, 1.0, "linear"), Knob("prox", 1e-3, 1.0)),
    ),
    Entry(
        name="HierFAVG", paper="Liu, Zhang, Song, Letaief 2020, arXiv 1905.06641",
        selects=EVERYBODY, steps="tau_1 steps from the edge's model",
        combines="mean at the edge, tau_2 times; then mean of the edges by their weight, also of "
        "one of which nobody answered",
        minimises="as LocalGD with tau_1 to tau_1 tau_2 steps", needs="who belongs to which edge",
        unbiased=ALL_AGENTS,
        confirmed="LuminLiu/HierFL average.py, hierfavg.py (size-weighted means at both levels)",
        hears=ALL,
    ),
    Entry(
        name="Mocha", paper="Smith, Chiang, Sanjabi, Talwalkar 2017, arXiv 1705.10467",
        selects=EVERYBODY, steps="coordinate ascent on the dual of a task of its own",
        combines="W = B Sigma / lambda; Sigma is learned from W",
        minimises="another objective: one model per agent, the sum over k of the mean loss of "
        "agent k at w_k, without its ridge, + lambda/2 tr(W Omega W')",
        needs="lambda; a loss with a conjugate step", unbiased="no: another objective",
        confirmed="gingsmith/fmtl opt/run_mocha.m (hinge step, Sigma, rho); its W is not computed "
        "anew when Sigma changes, ours is",
        hears=ALL, state="K M + K^2",
    ),
    Entry(
        name="FedCS", paper="Nishio, Yonetani 2019, arXiv 1804.08333",
        selects="of those asked, greedily, as many as finish before a deadline", steps=SGD,
        combines="mean over those selected", minimises="not w^o: slow agents are never selected",
        needs="a deadline; speed and bandwidth of those asked",
        unbiased="only without a deadline, and then as FedAvg",
        confirmed="jsincn/SelecEval seleceval/selection/fedcs.py (the greedy schedule)",
        hears=CANDIDATES,
    ),
    Entry(
        name="HybridFL", paper="Yoshida, Nishio, Morikura, Yamamoto, Yonetani 2020, "
        "arXiv 1905.07210",
        selects="as FedCS; some agents also send examples",
        steps=SGD + "; the cloud trains on what it has gathered",
        combines="mean of the agents' models and the cloud's, which weighs by its examples; agents "
        "weigh by theirs only by size, else each as one of mean size",
        minimises="not w^o: slow agents are never selected, uploaded examples count twice",
        needs="a deadline; speeds, permission and classes of those asked; raw examples",
        unbiased="no",
        hears=CANDIDATES,
    ),
    Entry(
        name="FOLB", paper="Nguyen, Sehwag, Hosseinalipour, Brinton, Chiang, Poor 2021, "
        "arXiv 2007.13137",
        selects=UNIFORM + "; near-optimal: by |<grad P, g_k>|", steps="as FedProx",
        combines="changes weighted by how their gradients agree with the mean gradient",
        minimises="not w^o: agents that disagree count less, or with the other sign",
        needs="prox; a full gradient from every agent that answers (near-optimal: from all)",
        unbiased="no",
        knobs=(Knob("prox", 1e-3, 1.0),),
    ),
    Entry(
        name="AgnosticFL", paper="Mohri, Sivek, Suresh 2019, arXiv 1902.00146",
        selects="all agents; stochastic: one by lambda, another uniformly",
        steps="one gradient", combines="lambda-weighted step; lambda moves to those with larger "
        "risks; the output is the mean of all models",
        minimises="another objective: max over lambda of sum_k lambda_k P_k",
        needs="a step for lambda; risks of the agents", unbiased="no: another objective",
        confirmed="litian96/fair_flearn flearn/trainers/afl.py (both steps from one w, projection, "
        "mean of the models)",
        hears=ALL, knobs=(Knob("mixture_step", 1e-3, 1.0),),
    ),
    Entry(
        name="QFedAvg", paper="Li, Sanjabi, Beirami, Smith 2020, arXiv 1905.10497",
        selects=UNIFORM, steps=SGD,
        combines="changes weighted by P_k^q over an estimate of the curvature",
        minimises="another objective: sum_k c_k P_k^(q+1) / (q+1)",
        needs="q; a risk from every agent that answers",
        unbiased="q = 0: as FedAvg; else another objective",
        confirmed="litian96/fair_flearn flearn/trainers/qffedavg.py (Delta_k, h_k, the step)",
        knobs=(Knob("power", 1e-3, 5.0),),
    ),
    Entry(
        name="QFedSGD", paper="Li, Sanjabi, Beirami, Smith 2020, arXiv 1905.10497",
        selects=UNIFORM, steps="one full-batch gradient",
        combines="gradients weighted by P_k^q over an estimate of the curvature",
        minimises="another objective: sum_k c_k P_k^(q+1) / (q+1)",
        needs="q; a risk from every agent that answers",
        unbiased="q = 0: as FedAvg; else another objective",
        confirmed="litian96/fair_flearn flearn/trainers/qffedsgd.py (the same with a gradient)",
        knobs=(Knob("power", 1e-3, 5.0),),
    ),
    *RIVALS,
    Entry(
        name="importance", paper=ISFEDAVG, selects="as ISFedAvg, by a number that agents report",
        steps=SGD + ", as in plain training", combines="the weight c_k / p_k is on the change",
        minimises="as FedAvg; ISFedAvg with the choices that suit networks",
        needs="a score from every agent that answers", confirmed="as ISFedAvg",
        state="M + K",
    ),
    Entry(
        name="LookAheadPasses", paper="ours: stratified passes by importance, FedAdam (Reddi et al."
        " 2021, arXiv 2003.00295) with Nesterov's look-ahead, averaged models",
        selects="in passes, one of each of L strata of like changes, more often where changes are "
        "long", steps=SGD + " from w + beta_1 x (last move)",
        combines=WEIGHED + ", through Adam; shows the mean over a pass",
        minimises="as FedAvg; the default for networks",
        unbiased="in every round for fixed changes; not given the earlier cohorts of the pass",
        state="5 M + 33 K", knobs=(Knob("server_step_size", 1e-3, 0.1),),
    ),
)  # fmt: skip
