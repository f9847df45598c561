/* Makes recorded calls (recorder.py) on the machine that it was compiled for: `replay < calls > images`. */
#include SOURCE
#include <stdio.h>

static char *image;

static int64_t number(void) {
    int64_t n;
    if (fread(&n, sizeof n, 1, stdin) != 1) exit(feof(stdin) ? 0 : 1);
    return n;
}

int main(void) {
    for (;;) {
        int64_t call[16] = {number()}, offset[16] = {0}, count = number();
        for (int64_t i = 1; i <= count; i++) offset[i] = number(), call[i] = number();
        int64_t slots = number(), *slot = malloc((size_t)(slots + 1) * sizeof *slot);
        for (int64_t i = 0; i < slots; i++) slot[i] = number();
        int64_t size = number();
        if (posix_memalign((void **)&image, 4096, (size_t)size + 64) || fread(image, 1, (size_t)size, stdin) != (size_t)size)
            return 1;
        for (int64_t i = 0; i < slots; i++) *(char **)(image + slot[i]) += (intptr_t)image;
        for (int64_t i = 1; i <= count; i++) call[i] += offset[i] ? (intptr_t)image : 0;
        if (zk_calls(call, 1 + count)) return 1;
        for (int64_t i = 0; i < slots; i++) *(char **)(image + slot[i]) -= (intptr_t)image;
        fwrite(image, 1, (size_t)size, stdout);
        free(slot);
        free(image);
    }
}
