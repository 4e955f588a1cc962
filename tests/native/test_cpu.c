// What is said of this CPU: prints "best LEVEL", "prompts KERNEL" and "features ..." and checks that they agree with what can be asked for.
#include <stdio.h>
#include <string.h>

#include "lanewise.h"

static int passed, failed;

static void expect(int ok, const char* what) {
    ok ? ++passed : ++failed;
    if (!ok) printf("FAIL %s: %s\n", what, lw_last_error());
}

int main(void) {
    static const char* const levels[] = {"scalar", "avx2",    "avx512vnni", "avx512vbmi", "amx",
                                         "neon",   "dotprod", "i8mm",       "sve"};
    char features[256];
    snprintf(features, sizeof features, " %s ", lw_cpu_features());
    lw_kernel_info prompts = {0};
    expect(lw_kernel_in_use(NULL, LW_Q4_0, 96, &prompts) == LW_OK, "a kernel for prompts");
    printf("best %s\nprompts %s\nfeatures%s\n", lw_cpu_isa(), prompts.symbol, features);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; ++i) {
        char name[32];
        snprintf(name, sizeof name, " %s ", levels[i]);
        const lw_status status = lw_cpu_check(levels[i]);
        expect(status == (strstr(features, name) ? LW_OK : LW_ERR_CPU), levels[i]);
        expect(status == LW_OK || strstr(lw_last_error(), "it can run: scalar"), "what else this CPU can run");
    }
    expect(lw_cpu_check(NULL) == LW_OK, "the best level");
    expect(lw_cpu_check(lw_cpu_isa()) == LW_OK, "the best level by name");
    expect(lw_cpu_check("sve3") == LW_ERR_ARGUMENT && strstr(lw_last_error(), "'sve3'"), "an unknown level");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
