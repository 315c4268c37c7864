/* Draws for reference.c: random numbers by address, and 16-ary score tables to draw from. */
#include <stdint.h>

typedef int64_t i64;
typedef uint64_t u64;
#define INLINE static inline __attribute__((always_inline))
#define RARE static __attribute__((noinline))

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
INLINE void draw_fixed(const table_t *t, double floor, i64 num, int by_deville, rng_t *g,
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
        if (by_deville) {
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
