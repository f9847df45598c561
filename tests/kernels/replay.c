/* Makes recorded calls (recorder.py) on the machine that it was compiled for: `replay < calls > images`. */
#include SOURCE
#include <stdio.h>

static char *image;
static int64_t given[16][2]; /* whether an argument is an offset into the image, and its value */

static int64_t number(void) {
    int64_t n;
    if (fread(&n, sizeof n, 1, stdin) != 1) exit(feof(stdin) ? 0 : 1);
    return n;
}

static void *at(int i) { return given[i][0] ? image + given[i][1] : NULL; }
#define N(i) given[i][1]

static int call(int64_t function) {
    switch (function) {
    case 0: return zk_conv_forward(at(0), at(1), at(2), at(3), at(4), N(5), N(6));
    case 1:
        return zk_conv_backward(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), N(10), N(11));
    case 2: return zk_pass(N(0), N(1), N(2), N(3), at(4), at(5), at(6), N(7), N(8));
    case 3: return zk_move(at(0), at(1), N(2), N(3), N(4), N(5), N(6), N(7), N(8), N(9), N(10), N(11), N(12));
    case 4: return zk_norm_forward(at(0), at(1));
    case 5: return zk_norm_backward(at(0), at(1));
    case 6: return zk_row_norm(at(0), N(1));
    }
    return 1;
}

int main(void) {
    for (;;) {
        int64_t function = number(), count = number();
        for (int64_t i = 0; i < 2 * count; i++) given[i / 2][i % 2] = number();
        int64_t slots = number(), *slot = malloc((size_t)(slots + 1) * sizeof *slot);
        for (int64_t i = 0; i < slots; i++) slot[i] = number();
        int64_t size = number();
        if (posix_memalign((void **)&image, 4096, (size_t)size + 64) || fread(image, 1, (size_t)size, stdin) != (size_t)size)
            return 1;
        for (int64_t i = 0; i < slots; i++) *(char **)(image + slot[i]) += (intptr_t)image;
        if (call(function)) return 1;
        for (int64_t i = 0; i < slots; i++) *(char **)(image + slot[i]) -= (intptr_t)image;
        fwrite(image, 1, (size_t)size, stdout);
        free(slot);
        free(image);
    }
}
