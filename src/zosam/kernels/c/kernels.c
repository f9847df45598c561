/* Sparse convolution on blocked activations, with the element-wise work around it fused in.
 *
 * Layout.  An activation is [blocks][channels][plane], where a plane holds H * W vectors of LANES
 * images, followed by a little padding that keeps channels off the same cache sets.  LANES images lie
 * innermost, so ONE weight is one broadcast and one multiply-add for LANES images, at any position,
 * stride and kernel size: no gather, no scatter, nothing to pack.
 *
 * Walk.  A row tile of output vectors stays in registers while the active weights of one output channel
 * are walked.  The index holds, per active weight, its offset in a padded copy ("band") of the input.
 * The same walk over the transposed index gives the input gradient; the weight gradient is a dot product
 * per active weight.
 *
 * Fusion.  A Source says what is read: relu(xs * (x - xc) + xb + ys * (y - yc) + yb + z), so that batch norm,
 * residual and ReLU (or another activation) of the layer before happen while the band is filled.  A Sink says what is done
 * with a result before it is stored: add a tensor, close the gate of a ReLU, sum what batch norm needs.
 *
 * Rows.  A linear layer is a 1 x 1 convolution on small images whose pixels are the rows of its input.
 *
 * Threads.  They take blocks of the batch, each a range of its own and then what others have left.  Who took which
 * does not matter: sums over the batch are made per chunk of blocks and joined in order, so results depend on the
 * number of threads only.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"
#include "structures.h"
#include "threads.h"
#include "bands.h"
#include "tiles.h"
#include "convolution.h"
#include "elementwise.h"
#include "pooling.h"
#include "layout.h"
#include "pixels.h"
#include "norms.h"

/* ---- weights that are not where the mask says -------------------------------------------------------- */

/* For each layer four numbers: its weight, how many there are, where its active ones lie, how many those are.
 * Returns the first layer that has a weight other than zero among the rest, -1 if none has. */
EXPORT int64_t zk_strays(const int64_t *layers, int64_t count) {
    for (int64_t layer = 0; layer < count; layer++) {
        const float *weight = (const float *)(intptr_t)layers[4 * layer];
        const int32_t *pick = (const int32_t *)(intptr_t)layers[4 * layer + 2];
        int64_t size = layers[4 * layer + 1], active = layers[4 * layer + 3], inside = 0, all = 0;
        for (int64_t i = 0; i < active; i++) inside += weight[pick[i]] != 0;
        for (int64_t from = 0; from < size; from += 1 << 20) { /* so that 32 bits hold a sum, and vectors are full */
            int32_t some = 0, rest = (int32_t)(size - from < 1 << 20 ? size - from : 1 << 20);
            for (int32_t i = 0; i < rest; i++) some += weight[from + i] != 0;
            all += some;
        }
        if (all != inside) return layer;
    }
    return -1;
}

/* ---- many calls as one ------------------------------------------------------------------------------ */

enum {
    CONV_FORWARD, CONV_BACKWARD, SWEEP, MOVE, BATCH_NORM_FORWARD, BATCH_NORM_BACKWARD, LAYER_NORM, PIXEL_CONV, PIXEL_MOVE,
    PIXEL_POOL, WINDOW, PIXEL_WINDOW
};

/* Makes the calls of a list, in order: each is its number, then its arguments.  Stops at the first that fails. */
EXPORT int zk_calls(const int64_t *list, int64_t length) {
    int failed = 0;
    for (const int64_t *a = list, *end = list + length; a < end && !failed;) {
#define P(i) ((void *)(intptr_t)a[i])
#define MADE(count, call) failed = call, a += count; break
        switch (*a++) {
        case CONV_FORWARD: MADE(7, conv_forward(P(0), P(1), P(2), P(3), P(4), a[5], a[6]));
        case CONV_BACKWARD:
            MADE(12, conv_backward(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), a[10], a[11]));
        case SWEEP: MADE(11, sweep(a[0], a[1], a[2], a[3], P(4), P(5), P(6), a[7], a[8], a[9], a[10]));
        case MOVE:
            MADE(13, move(P(0), P(1), a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]));
        case BATCH_NORM_FORWARD: MADE(2, batch_norm_forward(P(0), P(1)));
        case BATCH_NORM_BACKWARD: MADE(4, batch_norm_backward(P(0), P(1), P(2), P(3)));
        case LAYER_NORM: MADE(2, layer_norm(P(0), a[1]));
        case PIXEL_CONV: MADE(6, pixel_conv(P(0), P(1), P(2), P(3), P(4), a[5]));
        case PIXEL_MOVE:
            MADE(13, pixel_move(P(0), P(1), a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]));
        case PIXEL_POOL: MADE(8, pixel_pool(a[0], a[1], a[2], a[3], a[4], a[5], P(6), P(7)));
        case WINDOW: MADE(2, window(P(0), a[1]));
        case PIXEL_WINDOW: MADE(3, pixel_window(P(0), a[1], a[2]));
        default: failed = -1;
        }
#undef MADE
#undef P
    }
    return failed;
}
