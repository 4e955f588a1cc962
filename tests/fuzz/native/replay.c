// Runs a fuzz target over files, without a fuzzer: fuzz_NAME FILE...
#include "input.h"

static bool run_file(const char* path) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return false;
    }
    static uint8_t data[1 << 20];
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t* exact = malloc(size > 0 ? size : 1);  // so that a sanitizer notices a read past the end
    if (exact == NULL) return false;
    memcpy(exact, data, size);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return true;
}

int main(int argc, char** argv) {
    int missing = 0;
    for (int i = 1; i < argc; ++i) missing += !run_file(argv[i]);
    printf("%d inputs run, %d failed\n", argc - 1 - missing, missing);
    return missing != 0;
}
