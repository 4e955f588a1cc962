#include "cpu.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

const char* const lw_level_names[LW_LEVEL_COUNT] = {"scalar", "avx2",    "avx512vnni", "avx512vbmi", "amx",
                                                    "neon",   "dotprod", "i8mm",       "sve"};

// Writes the names of the levels that this CPU can run, separated by spaces.
static void usable_levels(char names[128]) {
    const uint32_t levels = lw_cpu_levels();
    names[0] = 0;
    for (int level = 0; level < LW_LEVEL_COUNT; ++level)
        if (levels >> level & 1) strcat(strcat(names, names[0] ? " " : ""), lw_level_names[level]);
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    AVX512_FP16 = 1 << 23,  // CPUID leaf 7, EDX; compilers disagree about the names
    ZEN_3_4 = 0x19,         // family, CPUID leaf 1
    AMX_TILE = 1 << 24,
    AMX_INT8 = 1 << 25,
    REQUEST_STATE = 0x1023,  // ARCH_REQ_XCOMP_PERM of arch_prctl
    TILE_DATA = 18,
    TILE_STATE = 3 << 17,  // configuration and data, in XCR0
};

lw_fetch_order lw_cpu_fetch_order = LW_FETCH_LINES;

// Two kinds of cores are faster with another order: Intel's since Sapphire Rapids, which brought AVX-512-FP16, and
// Zen 4, the only cores of family 0x19 with AVX-512.
__attribute__((constructor)) static void find_fetch_order(void) {
    uint32_t a, b, c, d, vendor, version;
    if (!__get_cpuid(0, &a, &vendor, &c, &d) || !__get_cpuid(1, &version, &b, &c, &d)) return;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const uint32_t family = (version >> 8 & 0xF) + (version >> 20 & 0xFF);
    if (vendor == signature_INTEL_ebx && (d & AVX512_FP16)) lw_cpu_fetch_order = LW_FETCH_PAGES;
    if (vendor == signature_AMD_ebx && family == ZEN_3_4 && (b & bit_AVX512F)) lw_cpu_fetch_order = LW_FETCH_WHOLE;
}

static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static _Bool has(uint32_t reg, uint32_t bits) { return (reg & bits) == bits; }

uint32_t lw_cpu_levels(void) {
    uint32_t a, b, c, d, b7, c7, d7, c81;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c81, &d)) return 0;
    // The floor is x86-64-v3: scalar code uses FMA, F16C and BMI too.
    if (!has(c, bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE | bit_MOVBE) || !has(c81, bit_LZCNT)) return 0;
    if (!has(b7, bit_AVX2 | bit_BMI | bit_BMI2)) return 0;
    const uint64_t state = enabled_state();
    if ((state & 0x06) != 0x06) return 0;  // the system saves XMM and YMM
    uint32_t levels = LW_BIT_SCALAR | LW_BIT_AVX2;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (!has(b7, avx512) || !has(c7, bit_AVX512VNNI) || (state & 0xE6) != 0xE6) return levels;
    levels |= LW_BIT_AVX512VNNI;
    if (!has(c7, bit_AVX512VBMI | bit_AVX512VBMI2)) return levels;
    levels |= LW_BIT_AVX512VBMI;
    // The tiles' registers enlarge the state that the system saves, so a process gets them only if it asks.
    if (has(d7, AMX_TILE | AMX_INT8) && (state & TILE_STATE) == TILE_STATE &&
        syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0)
        levels |= LW_BIT_AMX;
    return levels;
}

uint64_t lw_fp_enter(void) {
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1F80);  // all exceptions masked, round to nearest, no FTZ, no DAZ
    return saved;
}

void lw_fp_restore(uint64_t saved) { _mm_setcsr((uint32_t)saved); }

uint32_t lw_cpu_vector_bits(void) { return 0; }

#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>

enum {
    CAP_DOTPROD = 1 << 20,
    CAP_SVE = 1 << 22,
    CAP_F16_FMLAL = 1 << 23,
    CAP2_SVE_INT8MM = 1 << 9,
    CAP2_INT8MM = 1 << 13
};
enum { GET_VECTOR_LENGTH = 51, VECTOR_BYTES = 0xFFFF };  // PR_SVE_GET_VL and its mask

atomic_uint lw_cpu_fetch_ahead;

static uint32_t vector_bits;

__attribute__((constructor)) static void find_vector_bits(void) {
    const int found = getauxval(AT_HWCAP) & CAP_SVE ? prctl(GET_VECTOR_LENGTH) : 0;
    vector_bits = found < 0 ? 0 : (uint32_t)(found & VECTOR_BYTES) * 8;
}

uint32_t lw_cpu_vector_bits(void) { return vector_bits; }

uint32_t lw_cpu_levels(void) {
    uint32_t levels = LW_BIT_SCALAR | LW_BIT_NEON;
    if (!(getauxval(AT_HWCAP) & CAP_DOTPROD)) return levels;
    levels |= LW_BIT_DOTPROD;
    if (!(getauxval(AT_HWCAP) & CAP_F16_FMLAL) || !(getauxval(AT_HWCAP2) & CAP2_INT8MM)) return levels;
    levels |= LW_BIT_I8MM;
    const uint32_t bits = lw_cpu_vector_bits();
    if (getauxval(AT_HWCAP2) & CAP2_SVE_INT8MM && (bits == 128 || bits == 256 || bits == 512)) levels |= LW_BIT_SVE;
    return levels;
}

uint64_t lw_fp_enter(void) {
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));  // round to nearest, no FZ, no FZ16, no default NaN
    return saved;
}

void lw_fp_restore(uint64_t saved) { __asm__ volatile("msr fpcr, %0" : : "r"(saved)); }

#endif

lw_level lw_cpu_best_level(void) {
    const uint32_t levels = lw_cpu_levels();
    lw_level best = LW_LEVEL_SCALAR;
    for (int level = 0; level < LW_LEVEL_COUNT; ++level)
        if (levels >> level & 1) best = (lw_level)level;
    return best;
}

lw_status lw_level_by_name(const char* name, lw_level* out) {
    const uint32_t levels = lw_cpu_levels();
    char usable[128];
    if (levels == 0)
        return lw_fail(LW_ERR_CPU, "this CPU lacks x86-64-v3 (AVX2, FMA, F16C, BMI2), which Lanewise needs");
    if (name == NULL) {
        *out = lw_cpu_best_level();
        return LW_OK;
    }
    usable_levels(usable);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (strcmp(name, lw_level_names[level]) != 0) continue;
        if (!(levels >> level & 1))
            return lw_fail(LW_ERR_CPU, "isa '%s': this CPU cannot run it; it can run: %s", name, usable);
        *out = (lw_level)level;
        return LW_OK;
    }
    return lw_fail(LW_ERR_ARGUMENT, "isa '%s' is unknown; accepted on this CPU: %s", name, usable);
}

lw_status lw_set_fetch_ahead(uint32_t n_bytes) {
    if (n_bytes > LW_MAX_FETCH_AHEAD)
        return lw_fail(LW_ERR_ARGUMENT, "fetch_ahead %u: must be 0 to %u", n_bytes, LW_MAX_FETCH_AHEAD);
#if defined(__aarch64__)
    atomic_store_explicit(&lw_cpu_fetch_ahead, n_bytes, memory_order_relaxed);
#else
    if (n_bytes != 0)
        return lw_fail(LW_ERR_ARGUMENT, "fetch_ahead %u: must be 0 on x86, where kernels prefetch in a fixed order",
                       n_bytes);
#endif
    return LW_OK;
}

lw_status lw_cpu_check(const char* isa) {
    lw_level level;
    return lw_level_by_name(isa, &level);
}

const char* lw_cpu_isa(void) { return lw_level_names[lw_cpu_best_level()]; }

const char* lw_cpu_features(void) {
    static _Thread_local char names[144];
    usable_levels(names);
    const size_t length = strlen(names);
    if (lw_cpu_levels() & LW_BIT_SVE) snprintf(names + length, sizeof names - length, " vl%u", lw_cpu_vector_bits());
    return names;
}
