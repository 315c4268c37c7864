/* The work of the kernel as a hand-written C loop, one thread: the yardstick of `make bench`.
 *
 * The same draws from the same addresses (splitmix64 and xoshiro256++), the same 16-ary score
 * tables, the same arithmetic; nothing is shared with the library but the numbers that go in. It
 * runs FedAvg (uniform agents without replacement, batches with replacement) and ISFedAvg with
 * memory policies (systematic or Deville draws), on least squares and logistic losses.
 *
 * With -DM=.. -DB=.. -DE=.. -DL=.. and so on the sizes and choices are known to the compiler: see
 * the list below. Without them they are read from the task.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;
#define INLINE static inline __attribute__((always_inline))
#define RARE static __attribute__((noinline))

typedef struct {
    const double *features, *targets;
    const i64 *offsets, *local_steps, *batch_size;
    const double *optimum;
    i64 num_agents, num_params, num_active;
    i64 logistic;  /* or least squares */
    i64 memory;    /* or FedAvg */
    i64 deville;   /* or systematic */
    i64 second_moment, divide_by_steps;
    double ridge, step_size, agent_floor, example_floor, rate;
} task_t;

#ifndef M
#define M (task->num_params)
#endif
#ifndef L
#define L (task->num_active)
#endif
#ifndef E
#define E (task->local_steps[agent])
#endif
#ifndef B
#define B (task->batch_size[agent])
#endif
#ifndef LOGISTIC
#define LOGISTIC (task->logistic)
#endif
#ifndef MEMORY
#define MEMORY (task->memory)
#endif
#ifndef DEVILLE
#define DEVILLE (task->deville)
#endif

/* ---- random numbers ---- */

typedef struct { u64 s0, s1, s2, s3; } rng_t;
#define GAMMA 0x9E3779B97F4A7C15u

INLINE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

INLINE rng_t start(u64 key, i64 round, i64 agent) {
    u64 z = mix(key + GAMMA * (u64)(round + 1)) ^ mix(~key + GAMMA * (u64)(agent + 2));
    return (rng_t){mix(z + GAMMA), mix(z + 2 * GAMMA), mix(z + 3 * GAMMA), mix(z + 4 * GAMMA)};
}

INLINE double uniform(rng_t *g) {
    u64 total = g->s0 + g->s3, word = ((total << 23) | (total >> 41)) + g->s0, t = g->s1 << 17;
    g->s2 ^= g->s0;
    g->s3 ^= g->s1;
    g->s1 ^= g->s2;
    g->s0 ^= g->s3;
    g->s2 ^= t;
    g->s3 = (g->s3 << 45) | (g->s3 >> 19);
    return (double)(i64)(word >> 11) * 0x1p-53;  /* 53 bits: the signed conversion is exact */
}

INLINE i64 below(rng_t *g, i64 bound) { return (i64)(uniform(g) * (double)bound); }

/* ---- score tables ---- */

enum { SHIFT = 4, FAN = 1 << SHIFT, MOST_BLOCKS = 64 };
#define UNSEEN (-1.0)
#define ASIDE (-2.0)

typedef struct { double sum, seen, unseen; } node_t;
typedef struct { double *leaf; node_t *node; i64 count, root; } table_t;
typedef struct { double a, b, c; } scale_t;  /* weight: a score + b if seen, c if not */

INLINE i64 above(i64 count) { return (count + FAN - 1) >> SHIFT; }
INLINE i64 least(i64 x, i64 y) { return x < y ? x : y; }

static i64 num_nodes(i64 count) {
    i64 nodes = 0;
    do nodes += count = above(count); while (count > 1);
    return nodes;
}

INLINE double known(double score) { return score > 0.0 ? score : 0.0; }

INLINE double block_sum(const double *leaf, i64 size) {
    if (size == FAN) {
        double s[8];
        for (int i = 0; i < 8; i++) s[i] = known(leaf[i]) + known(leaf[i + 8]);
        return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    double total = 0.0;
    for (i64 i = 0; i < size; i++) total += known(leaf[i]);
    return total;
}

INLINE void refresh_sums(const table_t *t, const i64 *units, i64 num) {
    i64 previous = -1;
    for (i64 i = 0; i < num; i++) {
        i64 parent = units[i] >> SHIFT, first = parent << SHIFT;
        if (parent == previous) continue;
        t->node[parent].sum = block_sum(t->leaf + first, least(FAN, t->count - first));
        previous = parent;
    }
    node_t *level = t->node;
    int shift = 2 * SHIFT;
    for (i64 size = above(t->count); size > 1; size = above(size), shift += SHIFT) {
        node_t *next = level + size;
        previous = -1;
        for (i64 i = 0; i < num; i++) {
            i64 parent = units[i] >> shift, first = parent << SHIFT;
            if (parent == previous) continue;
            double total = 0.0;
            for (i64 child = first; child < least(first + FAN, size); child++)
                total += level[child].sum;
            next[parent].sum = total;
            previous = parent;
        }
        level = next;
    }
}

RARE void count_leaf(const table_t *t, i64 unit, double seen, double unseen) {
    node_t *level = t->node;
    i64 size = t->count;
    do {
        unit >>= SHIFT;
        size = above(size);
        level[unit].seen += seen;
        level[unit].unseen += unseen;
        level += size;
    } while (size > 1);
}

INLINE void set_scores(const table_t *t, const i64 *units, const double *scores, i64 num) {
    for (i64 i = 0; i < num; i++) {
        if (t->leaf[units[i]] < 0.0) count_leaf(t, units[i], 1.0, -1.0);
        t->leaf[units[i]] = scores[i];
    }
    refresh_sums(t, units, num);
}

INLINE scale_t scale_of(const table_t *t, double floor) {
    const node_t *root = t->node + t->root;
    if (!(root->sum > 0.0)) return (scale_t){0.0, 1.0, 1.0};
    double mean = root->sum / root->seen;
    return (scale_t){1.0 - floor, floor * mean, mean};
}

INLINE double weight_of(double score, scale_t s) {
    return score >= 0.0 ? s.a * score + s.b : score == UNSEEN ? s.c : 0.0;
}

INLINE double node_weight(const node_t *n, scale_t s) {
    return s.a * n->sum + s.b * n->seen + s.c * n->unseen;
}

INLINE void block_starts(const table_t *t, scale_t s, double *starts) {
    i64 blocks = above(t->count);
    if (blocks > MOST_BLOCKS) return;
    double reached = 0.0;
    for (i64 block = 0; block < blocks; block++) {
        starts[block] = reached;
        reached += node_weight(t->node + block, s);
    }
}

RARE i64 descend(const table_t *t, scale_t s, double target, double *low) {
    int level = 1;
    while ((t->count - 1) >> (SHIFT * level) > 0) level++;
    const node_t *nodes = t->node + t->root;
    i64 node = 0;
    *low = 0.0;
    while (level-- > 1) {
        i64 size = ((t->count - 1) >> (SHIFT * level)) + 1, first = node << SHIFT;
        nodes -= size;
        double reached = *low;
        for (i64 child = first; child < least(first + FAN, size); child++) {
            double weight = node_weight(nodes + child, s);
            if (!(weight > 0.0)) continue;
            node = child;
            *low = reached;
            reached += weight;
            if (target < reached) break;
        }
    }
    return node;
}

RARE i64 last_positive(const table_t *t, scale_t s, i64 end, double *low) {
    i64 unit = end - 1;
    while (unit > 0 && !(weight_of(t->leaf[unit], s) > 0.0)) unit--;
    *low = 0.0;
    for (i64 before = 0; before < unit; before++) *low += weight_of(t->leaf[before], s);
    return unit;
}

/* The unit at cumulative weight `target`, and where it begins.
 *
 * Without `low`, which is then not asked for, it looks at all the leaves of the block: no branch to
 * mispredict, and several finds run at once. With it, leaving early is faster.
 */
INLINE i64 find(const table_t *t, scale_t s, const double *starts, int plain, double target,
                double *low) {
    i64 blocks = above(t->count), block = 0;
    double reached;
    if (blocks > MOST_BLOCKS) {
        block = descend(t, s, target, &reached);
    } else {
        for (i64 i = 1; i < blocks; i++) block += starts[i] <= target;
        reached = starts[block];
    }
    i64 unit = block << SHIFT, last = least(unit + FAN, t->count);
    if (plain && !low) {
        i64 passed = 0;
        for (i64 i = unit; i < last; i++) {
            reached += s.a * t->leaf[i] + s.b;
            passed += reached <= target;
        }
        if (unit + passed < last) return unit + passed;
    } else {
        for (; unit < last; unit++) {
            double score = t->leaf[unit];
            double end = reached + (plain ? s.a * score + s.b : weight_of(score, s));
            if (target < end) {
                if (low) *low = reached;
                return unit;
            }
            reached = end;
        }
    }
    return last_positive(t, s, last, low ? low : &reached);
}

INLINE i64 systematic(const table_t *t, scale_t s, double total, i64 num, double offset,
                      i64 *units, const double *starts, int plain) {
    double step = total / (double)num;
    i64 certain = 0, previous = -1;
    int repeated = 0;
    for (i64 draw = 0; draw < num; draw++) {
        i64 unit = find(t, s, starts, plain, (offset + (double)draw) * step, NULL);
        if (weight_of(t->leaf[unit], s) >= step) {
            if (unit != previous) units[certain++] = unit;
        } else if (certain == 0) {
            units[draw] = unit;
            repeated |= unit == previous;
        }
        previous = unit;
    }
    return certain == 0 && repeated ? -1 : certain;
}

INLINE i64 deville(const table_t *t, scale_t s, double total, i64 num, const double *uniforms,
                   i64 *units, const double *starts, int plain) {
    double step = total / (double)num, strata = 1.0 / step, begin;
    i64 certain = 0, previous = -1, taken = -1;
    for (i64 stratum = 0; stratum < num; stratum++) {
        i64 border = find(t, s, starts, plain, (double)stratum * step, &begin);
        double weight = weight_of(t->leaf[border], s);
        if (weight >= step) {
            if (border != previous) units[certain++] = border;
            previous = border;
            continue;
        }
        if (certain > 0) continue;
        double before = (double)stratum - begin * strata, share = uniforms[stratum];
        before = before > 0.0 ? before : 0.0;
        double after = weight * strata - before;
        if (border != taken) {
            double chance = after / (1.0 - before);
            chance = chance < 1.0 ? chance : 1.0;
            if (share < chance) {
                units[stratum] = taken = border;
                continue;
            }
            share = (share - chance) / (1.0 - chance);
        }
        double target = ((double)stratum + after + share * (1.0 - after)) * step;
        i64 unit = find(t, s, starts, plain, target, NULL);
        if (unit == taken) return -1;
        units[stratum] = taken = unit;
    }
    return certain;
}

RARE i64 take_present(const table_t *t, i64 *units, double *kept, i64 aside) {
    for (i64 unit = 0; unit < t->count; unit++)
        if (t->leaf[unit] != ASIDE) {
            units[aside] = unit;
            kept[aside++] = t->leaf[unit];
        }
    return aside;
}

RARE void set_aside(const table_t *t, const i64 *units, double *kept, i64 num) {
    for (i64 i = 0; i < num; i++) {
        kept[i] = t->leaf[units[i]];
        double unseen = kept[i] == UNSEEN;
        count_leaf(t, units[i], unseen - 1.0, -unseen);
        t->leaf[units[i]] = ASIDE;
    }
    refresh_sums(t, units, num);
}

RARE void put_back(const table_t *t, const i64 *units, const double *kept, i64 num) {
    for (i64 i = 0; i < num; i++) {
        if (t->leaf[units[i]] != ASIDE) continue;
        double unseen = kept[i] == UNSEEN;
        count_leaf(t, units[i], 1.0 - unseen, unseen);
        t->leaf[units[i]] = kept[i];
    }
    refresh_sums(t, units, num);
}

/* Draw `num` distinct units; prob[i] is the inclusion probability of units[i] over `num`. */
INLINE void draw_fixed(const task_t *task, const table_t *t, double floor, i64 num, rng_t *g,
                       double *uniforms, i64 *units, double *prob) {
    double starts[MOST_BLOCKS];
    scale_t s = scale_of(t, floor);
    const node_t *root = t->node + t->root;
    i64 aside = 0;
    while (aside < num) {
        i64 rest = num - aside, certain;
        double present = root->seen + root->unseen, total = node_weight(root, s);
        if (present == (double)rest) {
            aside = take_present(t, units, prob, aside);
            break;
        }
        if (!(total > 0.0)) {
            s = (scale_t){0.0, 1.0, 1.0};
            total = present;
        }
        int plain = root->seen == (double)t->count;
        block_starts(t, s, starts);
        if (DEVILLE) {
            for (i64 i = 0; i < rest; i++) uniforms[i] = uniform(g);
            certain = deville(t, s, total, rest, uniforms, units + aside, starts, plain);
        } else {
            double offset = uniform(g);
            certain = systematic(t, s, total, rest, offset, units + aside, starts, plain);
        }
        if (certain == 0) {
            double share = (double)rest / ((double)num * total);
            for (i64 i = aside; i < num; i++) prob[i] = weight_of(t->leaf[units[i]], s) * share;
            break;
        }
        if (certain > 0) {
            set_aside(t, units + aside, prob + aside, certain);
            aside += certain;
        }
    }
    if (aside > 0) {
        put_back(t, units, prob, aside);
        for (i64 i = 0; i < aside; i++) prob[i] = 1.0 / (double)num;
    }
}

/* ---- losses ---- */

INLINE double dot(const double *restrict x, const double *restrict y, i64 size) {
    i64 whole = size & ~(i64)7;
    double total = 0.0;
    if (whole > 0) {
        double s[8] = {0.0};
        for (i64 j = 0; j < whole; j += 8)
            for (int i = 0; i < 8; i++) s[i] += x[j + i] * y[j + i];
        total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    for (i64 j = whole; j < size; j++) total += x[j] * y[j];
    return total;
}

INLINE void batch_gradient(const task_t *task, const double *restrict params, i64 first, i64 num,
                           const i64 *restrict units, const double *restrict weight,
                           double *restrict gradient, double *restrict norms) {
    const i64 size = M;
    double pull = 2.0 * task->ridge, length = MEMORY ? dot(params, params, size) : 0.0, total = 0.0;
    for (i64 j = 0; j < size; j++) gradient[j] = 0.0;
    for (i64 i = 0; i < num; i++) {
        i64 row = first + units[i];
        const double *restrict x = task->features + row * size;
        double y = task->targets[row], margin = dot(x, params, size);
        double slope = LOGISTIC ? -y / (1.0 + exp(y * margin)) : -2.0 * (y - margin);
        double w = MEMORY ? weight[i] : 1.0, factor = w * slope;
        for (i64 j = 0; j < size; j++) gradient[j] += factor * x[j];
        total += w;
        if (MEMORY) {
            double square = slope * slope * dot(x, x, size);
            square += pull * (2.0 * slope * margin + pull * length);
            norms[i] = sqrt(square > 0.0 ? square : 0.0);
        }
    }
    for (i64 j = 0; j < size; j++)
        gradient[j] = (gradient[j] + total * pull * params[j]) / (double)num;
}

/* ---- the algorithm ---- */

typedef struct {
    table_t agents, *examples;
    double *nodes;             /* the numbers of all tables */
    double *memory;            /* what the agents remember for their score */
    i64 *order, *active, *units;
    double *agent_prob, *scores, *prob, *weight, *norms, *uniforms, *local, *gradient, *total;
    i64 gradients, uploads;
} state_t;

/* What an agent reports: the averaged bound, or the root of the averaged second moment. */
INLINE double agent_score(const task_t *task, const state_t *state, i64 agent, double stored) {
    const i64 size = M;
    const double *restrict gradient = state->gradient;
    double rate = task->rate, square = 0.0;
    if (task->second_moment) {
        double *kept = state->memory + agent;
        for (i64 j = 0; j < size; j++) square += gradient[j] * gradient[j];
        *kept = *kept < 0.0 ? square : (1.0 - rate) * *kept + rate * square;
        return sqrt(*kept);
    }
    double *restrict kept = state->memory + agent * (1 + size);
    int first = kept[0] < 0.0;
    kept[0] = stored;
    for (i64 j = 0; j < size; j++) {
        double average = first ? gradient[j] : (1.0 - rate) * kept[1 + j] + rate * gradient[j];
        kept[1 + j] = average;
        square += average * average;
    }
    double variation = 6.0 / (double)(E * B);
    return sqrt(variation * stored + (3.0 + variation) * square);
}

/* E local steps from `params`, left in state->local; returns the agent's score. */
INLINE double agent_turn(const task_t *task, const state_t *state, const double *restrict params,
                         i64 agent, double agent_prob, rng_t g) {
    const i64 size = M, steps = E, batch = B, first = task->offsets[agent];
    const i64 count = task->offsets[agent + 1] - first;
    const double divisor = (double)(task->divide_by_steps ? steps : 1);
    const double step = task->step_size / (divisor * (double)task->num_agents * agent_prob);
    double *restrict local = state->local, *restrict gradient = state->gradient;
    const table_t *t = state->examples + agent;
    memcpy(local, params, (size_t)size * sizeof(double));
    for (i64 e = 0; e < steps; e++) {
        if (MEMORY) {
            draw_fixed(task, t, task->example_floor, batch, &g, state->uniforms, state->units,
                       state->prob);
            for (i64 i = 0; i < batch; i++)
                state->weight[i] = 1.0 / ((double)count * state->prob[i]);
        } else {
            for (i64 i = 0; i < batch; i++) state->units[i] = below(&g, count);
        }
        batch_gradient(task, local, first, batch, state->units, state->weight, gradient,
                       state->norms);
        for (i64 j = 0; j < size; j++) local[j] -= step * gradient[j];
        if (MEMORY) set_scores(t, state->units, state->norms, batch);
    }
    if (!MEMORY) return 0.0;
    const node_t *root = t->node + t->root;
    double mean = root->seen > 0.0 ? root->sum / root->seen : 0.0;
    for (i64 j = 0; j < size; j++) gradient[j] = (params[j] - local[j]) / (step * (double)steps);
    return agent_score(task, state, agent, mean * mean);
}

INLINE void draw_agents(const task_t *task, const state_t *state, rng_t g) {
    const i64 num = L, count = task->num_agents;
    i64 *restrict active = state->active, *restrict order = state->order;
    if (MEMORY) {
        draw_fixed(task, &state->agents, task->agent_floor, num, &g, state->uniforms, active,
                   state->agent_prob);
        return;
    }
    for (i64 i = 0; i < num; i++) {
        i64 j = i + below(&g, count - i);
        active[i] = order[j];
        order[j] = order[i];
        state->agent_prob[i] = 1.0 / (double)count;
    }
    for (i64 i = 0; i < num; i++) order[active[i]] = active[i];
}

void run(const task_t *task, state_t *state, u64 agents_key, u64 examples_key, i64 first_round,
         i64 rounds, double *restrict params, double *restrict msd) {
    const i64 size = M, num_active = L;
    double *restrict total = state->total;
    for (i64 r = first_round; r < first_round + rounds; r++) {
        draw_agents(task, state, start(agents_key, r, -1));
        for (i64 j = 0; j < size; j++) total[j] = 0.0;
        for (i64 i = 0; i < num_active; i++) {
            i64 agent = state->active[i];
            state->scores[i] = agent_turn(task, state, params, agent, state->agent_prob[i],
                                          start(examples_key, r, agent));
            state->gradients += E * B;
            for (i64 j = 0; j < size; j++) total[j] += state->local[j] - params[j];
        }
        state->uploads += num_active;
        double distance = 0.0;
        for (i64 j = 0; j < size; j++) {
            params[j] += total[j] / (double)num_active;
            distance += (params[j] - task->optimum[j]) * (params[j] - task->optimum[j]);
        }
        if (MEMORY) set_scores(&state->agents, state->active, state->scores, num_active);
        *msd++ = distance;
    }
}

/* ---- set-up ---- */

static table_t make_table(double **at, i64 count) {
    i64 size = count, nodes = num_nodes(count);
    table_t t = {*at, (node_t *)(*at + count), count, nodes - 1};
    for (i64 unit = 0; unit < count; unit++) t.leaf[unit] = UNSEEN;
    node_t *node = t.node;
    i64 width = 1;
    while (size > 1 || width == 1) {
        size = above(size);
        width *= FAN;
        for (i64 i = 0; i < size; i++)
            *node++ = (node_t){0.0, 0.0, (double)(least((i + 1) * width, count) - i * width)};
    }
    *at += count + 3 * nodes;
    return t;
}

static void *room(i64 count) { return calloc((size_t)(count > 0 ? count : 1), sizeof(double)); }

state_t *make(const task_t *task) {
    state_t *state = calloc(1, sizeof(state_t));
    const i64 agents = task->num_agents, size = task->num_params;
    i64 numbers = agents + 3 * num_nodes(agents), most = task->num_active;
    for (i64 agent = 0; agent < agents; agent++) {
        i64 count = task->offsets[agent + 1] - task->offsets[agent];
        numbers += count + 3 * num_nodes(count);
        if (task->batch_size[agent] > most) most = task->batch_size[agent];
    }
    double *at = state->nodes = room(task->memory ? numbers : 0);
    state->examples = room(agents * 4);  /* a table_t is four words */
    if (task->memory) {
        for (i64 agent = 0; agent < agents; agent++) {
            i64 count = task->offsets[agent + 1] - task->offsets[agent];
            state->examples[agent] = make_table(&at, count);
        }
        state->agents = make_table(&at, agents);
    }
    state->memory = room(agents * (1 + size));
    for (i64 i = 0; i < agents * (1 + size); i++) state->memory[i] = -1.0;
    state->order = room(agents);
    for (i64 agent = 0; agent < agents; agent++) state->order[agent] = agent;
    state->active = room(most);
    state->units = room(most);
    double **rooms[] = {&state->agent_prob, &state->scores, &state->prob, &state->weight,
                        &state->norms, &state->uniforms};
    for (int i = 0; i < 6; i++) *rooms[i] = room(most);
    state->local = room(size);
    state->gradient = room(size);
    state->total = room(size);
    return state;
}

void discard(state_t *state) {
    void *rooms[] = {state->examples, state->nodes, state->memory, state->order, state->active,
                     state->units, state->agent_prob, state->scores, state->prob, state->weight,
                     state->norms, state->uniforms, state->local, state->gradient, state->total};
    for (int i = 0; i < 15; i++) free(rooms[i]);
    free(state);
}
