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
#include <stdlib.h>
#include <string.h>

#include "reference_draws.h"

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
            draw_fixed(t, task->example_floor, batch, DEVILLE, &g, state->uniforms, state->units,
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
        draw_fixed(&state->agents, task->agent_floor, num, DEVILLE, &g, state->uniforms, active,
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
