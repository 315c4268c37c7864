"""The catalogue's entries of rival samplers, selectors and reducers of variance."""

from __future__ import annotations

from isfed.methods.catalogue_entry import (
    ALL,
    CANDIDATES,
    PULLED,
    RATIO,
    SGD,
    UNIFORM,
    WEIGHED,
    Entry,
    Knob,
)

HORIZON = "the number of rounds"
BANDIT = "boxinz17/FL-Client-Sampling Synthetic/algorithms.py"

RIVALS: tuple[Entry, ...] = (
    Entry(
        name="SCAFFOLD", paper="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, "
        "arXiv 1910.06378",
        selects=UNIFORM, steps="E_k steps corrected by control variates",
        combines="mean over those that answer; control variates move by c_k",
        minimises="w^o: the corrections cancel the pull of more steps",
        needs="two vectors each way", unbiased=RATIO, state="M + K M",
        confirmed="see tests/methods/test_variance_rivals.py",
    ),
    Entry(
        name="FedVARP", paper="Jhunjhunwala, Sharma, Nagarkar, Joshi 2022, arXiv 2207.14130",
        selects=UNIFORM, steps=SGD,
        combines="last changes of all agents, also if nobody answers, corrected by those of the "
        "agents that answer",
        minimises=PULLED, state="M + K M",
        confirmed="see tests/methods/test_variance_rivals.py",
    ),
    Entry(
        name="ClusteredSampling", paper="Fraboni, Vidal, Kameni, Lorenzi 2021, arXiv 2105.05883",
        selects="one agent from each of L groups, by size or by similar changes", steps=SGD,
        combines="plain mean over L draws", minimises=PULLED, state="M + K M",
        confirmed="see tests/methods/test_variance_rivals.py",
    ),
    Entry(
        name="PowerOfChoice", paper="Cho, Wang, Joshi 2022, arXiv 2010.01243",
        selects="of d candidates, drawn by size, the L with the largest risks; cpow-d: on one "
        "mini-batch; rpow-d: the last risks told, of nobody new", steps=SGD,
        combines="plain mean over those that answer",
        minimises="not w^o: tilted to agents with large risks",
        needs="d; a risk from every candidate", unbiased="no",
        confirmed="see tests/methods/test_power_of_choice.py", hears=CANDIDATES,
        knobs=(Knob("candidates", 0.1, 1.0, "share of K"),),
    ),
    Entry(
        name="DELTA", paper="Wang, Xu, Liu and others 2023, arXiv 2205.13925",
        selects="L draws with replacement, by the distance of an agent's gradient from the mean",
        steps=SGD, combines=WEIGHED, minimises=PULLED, hears=ALL,
        needs="the gradient of every agent",
        unbiased="yes; as_coded: no, successive draws have other probabilities",
        confirmed="L3030/DELTA_FL LEAF/local_update_FEMNIST.py (p_k; there without replacement)",
        knobs=(Knob("balance", 0.0, 1.0, "linear"),),
    ),
    Entry(
        name="MIFA", paper="Gu, Huang, Zhang, Huang 2021, arXiv 2106.04159",
        selects=UNIFORM, steps=SGD, combines="mean of the last changes of all agents",
        minimises=PULLED, unbiased="no: old changes count as new ones", state="M + K M",
        confirmed="IBM/fedau main.py",
    ),
    Entry(
        name="FedAU", paper="Wang, Ji 2024, arXiv 2306.03401", selects=UNIFORM, steps=SGD,
        combines="changes by c_k times the mean gap between participations", minimises=PULLED,
        unbiased="only in the limit: a mean gap estimates K / L", state="M + 3 K",
        confirmed="IBM/fedau main.py", knobs=(Knob("longest", 5, 500, "whole"),),
    ),
    Entry(
        name="ActiveFL", paper="Goetz, Malik, Bui, Moon, Liu, Kumar 2019, arXiv 1909.12641",
        selects="most by exp(a sqrt(N_k) P_k) among the agents with the largest risks, some "
        "uniformly", steps=SGD, combines="plain mean over those that answer",
        minimises="not w^o: tilted to agents with large risks", unbiased="no", state="M + K",
        needs="a risk from every agent once, and from those that answer",
        confirmed="Yoruko-Tang/FedCor src/federated_main.py, options.py",
        knobs=(Knob("sharpness", 1e-3, 10.0), Knob("drop", 0.0, 0.9, "linear")),
    ),
    Entry(
        name="Oort", paper="Lai, Zhu, Madhyastha, Chowdhury 2021, arXiv 2010.06081",
        selects="by examples times loss and by speed, and some that were never heard; more than "
        "are used", steps=SGD, combines="plain mean over the first L to finish",
        minimises="not w^o: tilted to agents with large risks and short turns", unbiased="no",
        needs="how long turns take; a risk from every agent that answers", state="M + 5 K",
        confirmed="SymbioticLab/Oort oort/oort.py; SymbioticLab/FedScale thirdparty/oort/oort.py",
        knobs=(Knob("explore", 0.2, 1.0, "linear"), Knob("penalty", 0.0, 4.0, "linear")),
    ),
    Entry(
        name="DivFL", paper="Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes 2022, ICLR",
        selects="L agents whose last gradients stand best for those of all, greedily", steps=SGD,
        combines="changes by how many agents one stands for, or by size",
        minimises="no fixed objective", unbiased="no", state="M + K M + K^2",
        needs="the gradient of every agent once",
        confirmed="melodi-lab/divfl flearn/trainers/fedavg.py (the choice; its weights are by "
        "size, those of the paper are unconfirmed)",
    ),
    Entry(
        name="FedSTaS", paper="FedSTaS 2025, public code icesabe/FL",
        selects="inside strata of similar gradients, by their length", steps=SGD,
        combines=WEIGHED, minimises=PULLED, hears=ALL,
        unbiased="yes; plain weights: no", needs="a sketch of the gradient of every agent",
        confirmed="icesabe/FL utils.py, fedprox_func.py (strata and places; its weights are "
        "biased, ours are not)", knobs=(Knob("strata", 1, 10, "whole"),),
    ),
    Entry(
        name="FedCor", paper="Tang, Ning, Wang, Sun, Wang, Li, Chen 2022, arXiv 2103.13822",
        selects="L agents whose losses tell most about those of all, by a model of how losses "
        "change together", steps=SGD, combines="plain mean over those that answer",
        minimises="no fixed objective", unbiased="no", state="M + 17 K + past changes of losses",
        needs="a risk from every agent during the warm-up and at every fit", hears=CANDIDATES,
        confirmed="Yoruko-Tang/FedCor src/GPR.py, federated_main.py, options.py",
        knobs=(Knob("warm_up", 5, 50, "whole"), Knob("shrink", 0.5, 0.99, "linear")),
    ),
    Entry(
        name="HiCSFL", paper="Chen, Vikalo 2024, arXiv 2310.00198",
        selects="from clusters of similar output layers, even classes more often at first",
        steps=SGD, combines="plain mean over those that answer",
        minimises="not w^o: in the end the mean over clusters of their means", unbiased="no",
        needs=HORIZON + "; a softmax output layer", state="M + K d, d of the output layer",
        confirmed="CityChan/HiCS-FL server/server_hics.py, clustering.py",
        knobs=(Knob("sharpness", 0.5, 16.0), Knob("clusters", 2, 20, "whole")),
    ),
    Entry(
        name="OCS", paper="Chen, Horvath, Richtarik 2022, arXiv 2010.13723",
        selects="all available agents work; each sends its change with a probability by the "
        "length of it", steps=SGD, combines=WEIGHED, minimises=PULLED,
        needs="the length of the change of every available agent", hears=ALL,
        confirmed="SamuelHorvath/FL-optimal-client-sampling simple_fedavg_tff.py, "
        "simple_fedavg_tf.py",
    ),
    Entry(
        name="AOCS", paper="Chen, Horvath, Richtarik 2022, arXiv 2010.13723",
        selects="as OCS, with probabilities from sums alone", steps=SGD, combines=WEIGHED,
        minimises=PULLED, needs="sums over the available agents, three times or more", hears=ALL,
        confirmed="SamuelHorvath/FL-optimal-client-sampling simple_fedavg_tff.py",
    ),
    Entry(
        name="KVib", paper="Zeng, Xu, Pan, Sun, Xu and others 2023, arXiv 2310.02698",
        selects="every agent independently, by all lengths heard of it so far", steps=SGD,
        combines=WEIGHED, minimises=PULLED, needs=HORIZON, state="M + K",
        confirmed="dunzeng/K-Vib sampler.py (theta, gamma, the sums; there without the root and "
        "with probabilities above 1 by an error)",
        knobs=(Knob("regulariser", 1e-9, 1.0),),
    ),
    Entry(
        name="OSMD", paper="Zhao, Wang, Kolar and others 2021, arXiv 2112.14332",
        selects="L draws with replacement; probabilities by mirror descent", steps=SGD,
        combines=WEIGHED, minimises=PULLED, state="M + X K, X experts",
        needs=HORIZON + "; once, the length of the gradient of every agent",
        confirmed=BANDIT + " (there a sum over the batch is heard where a mean is meant)",
        knobs=(Knob("alpha", 0.05, 1.0, "linear"),),
    ),
    Entry(
        name="MABS", paper="Salehi, Celis, Thiran 2017, arXiv 1708.02544",
        selects="L draws with replacement; probabilities by exponential weights", steps=SGD,
        combines=WEIGHED, minimises=PULLED, state="M + K",
        needs=HORIZON + "; once, the length of the gradient of every agent",
        confirmed=BANDIT + " (as OSMD)", knobs=(Knob("alpha", 0.05, 1.0, "linear"),),
    ),
    Entry(
        name="VRB", paper="Borsos, Krause, Levy 2018, arXiv 1802.04715",
        selects="L draws with replacement; probabilities by the root of what was heard",
        steps=SGD, combines=WEIGHED, minimises=PULLED, state="M + K",
        needs="once, the length of the gradient of every agent",
        confirmed=BANDIT + " (there losses are heard; here, as in the paper, lengths)",
        knobs=(Knob("alpha", 0.05, 1.0, "linear"),),
    ),
)  # fmt: skip
