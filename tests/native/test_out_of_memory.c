// Memory and threads that are refused, once at every place that asks for them: each call says so, works when it is made
// again, and what is given up halfway leaves nothing behind. The linker puts the functions below in the place of the
// system's (--wrap in native/CMakeLists.txt).
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "small_model.h"

static atomic_long asked;        // since the scenario began
static atomic_long refused_one;  // the number of the one that is refused; 0 = none
static atomic_long live;         // what was given and not given back

void* __real_malloc(size_t size);
void* __real_calloc(size_t n, size_t size);
void* __real_realloc(void* old, size_t size);
void* __real_aligned_alloc(size_t alignment, size_t size);
void* __real_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset);
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument);
void __real_free(void* memory);
int __real_munmap(void* address, size_t size);

static bool is_refused(void) {
    const long refused = atomic_load(&refused_one);
    return atomic_fetch_add(&asked, 1) + 1 == refused;
}

static void* counted(void* memory) {
    if (memory != NULL) atomic_fetch_add(&live, 1);
    return memory;
}

void* __wrap_malloc(size_t size) { return is_refused() ? NULL : counted(__real_malloc(size)); }

void* __wrap_calloc(size_t n, size_t size) { return is_refused() ? NULL : counted(__real_calloc(n, size)); }

void* __wrap_realloc(void* old, size_t size) {
    if (is_refused()) return NULL;
    void* memory = __real_realloc(old, size);
    return old != NULL ? memory : counted(memory);
}

void* __wrap_aligned_alloc(size_t alignment, size_t size) {
    return is_refused() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void* __wrap_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
    void* memory = is_refused() ? MAP_FAILED : __real_mmap(address, size, protection, flags, file, offset);
    if (memory != MAP_FAILED) atomic_fetch_add(&live, 1);
    return memory;
}

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    return is_refused() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

void __wrap_free(void* memory) {
    if (memory != NULL) atomic_fetch_sub(&live, 1);
    __real_free(memory);
}

int __wrap_munmap(void* address, size_t size) {
    atomic_fetch_sub(&live, 1);
    return __real_munmap(address, size);
}

static bool give_up;  // at the first call that fails, instead of making it again

static void check_refusal(const char* call, lw_status status) {
    char what[256];
    snprintf(what, sizeof what, "%s: status %d, must be %d and say 'no memory'", call, (int)status, LW_ERR_MEMORY);
    expect(status == LW_ERR_MEMORY && strstr(lw_last_error(), "no memory") != NULL, what);
}

#define TRY(call)                                                          \
    do {                                                                   \
        lw_status status_ = (call);                                        \
        if (status_ != LW_OK) {                                            \
            check_refusal(#call, status_);                                 \
            if (give_up) return;                                           \
            status_ = (call);                                              \
            expect(status_ == LW_OK, #call " fails when there is memory"); \
            if (status_ != LW_OK) return;                                  \
        }                                                                  \
    } while (0)

typedef struct everything {
    lw_model *model, *packed;
    lw_adapter* adapter;
    lw_session* session;
    one_sequence prompt, first, second;
    lw_finished times;
    bool ended;
} everything;

static bool can_place;  // copies on memory nodes

static void load(everything* e) {
    const uniform_config config = small_config();
    const uint32_t nodes[] = {0, 0};
    TRY(uniform_create(&config, NULL, 2, &e->model));
    if (can_place) TRY(lw_model_place(e->model, LW_NUMA_REPLICATE, nodes, 2));
    for (int i = 0; i < SMALL_TENSORS; ++i)
        for (uint32_t layer = 0; layer < (small_tensors[i].role >= LW_ATTN_NORM ? LAYERS : 1); ++layer)
            TRY(load_tensor(e->model, &small_tensors[i], layer));
    TRY(lw_model_finish(e->model));

    static const lw_role packed_again[] = {LW_FFN_UP, LW_ATTN_Q, LW_ATTN_NORM};  // 8 bits, floats, a vector
    TRY(uniform_create(&config, "scalar", 1, &e->packed));
    for (size_t i = 0; i < sizeof packed_again / sizeof *packed_again; ++i) {
        lw_packed_tensor tensor;
        TRY(lw_model_packed(e->model, packed_again[i], 1, &tensor));
        TRY(lw_model_load_packed(e->packed, &tensor, 1, LW_LOAD_COPY));
    }
}

static void adapt(everything* e) {
    static float a_values[4 * HIDDEN], b_values[FFN * 4];
    const lw_tensor a = float_tensor(a_values, 4, HIDDEN, 1), b = float_tensor(b_values, FFN, 4, 2);
    const lw_tensor half = {.data = a_values, .n_bytes = 2 * HIDDEN, .type = LW_F16, .rows = 1, .cols = HIDDEN};
    const lw_tensor half_b = {.data = a_values, .n_bytes = 2 * FFN, .type = LW_F16, .rows = FFN, .cols = 1};
    TRY(lw_adapter_create(e->model, &e->adapter));
    TRY(lw_adapter_load(e->adapter, LW_FFN_GATE, 0, &a, &b, 1));
    TRY(lw_adapter_load(e->adapter, LW_FFN_UP, 1, &a, &b, 1));
    lw_adapter* halves = NULL;  // of a type that no matrix of the model has
    memset(a_values, 0x11, sizeof a_values);
    lw_status status = lw_adapter_create(e->model, &halves);
    if (status == LW_OK) status = lw_adapter_load(halves, LW_FFN_GATE, 0, &half, &half_b, 1);
    if (status != LW_OK) check_refusal("an adapter of halves", status);
    lw_adapter_close(halves);
}

static void run(everything* e) {
    const lw_session_config config = small_session(3, LW_I8);
    const lw_adapter* adapters[] = {e->adapter};
    uint32_t n = 0;
    TRY(lw_session_open(e->model, &config, &e->session));
    TRY(lw_session_profile(e->session, 1));
    set_batch(&e->prompt, 20, 0, 0);
    set_batch(&e->first, 1, 20, 0);
    set_batch(&e->second, 1, 21, 0);
    e->prompt.batch.adapters = e->first.batch.adapters = e->second.batch.adapters = adapters;
    e->first.tokens[0] = e->second.tokens[0] = LW_DRAWN_BEFORE;
    TRY(lw_step(e->session, &e->prompt.batch, e->prompt.logits, &e->prompt.drawn));
    TRY(lw_session_start(e->session, &e->first.batch, e->first.logits, &e->first.drawn));
    TRY(lw_session_start(e->session, &e->second.batch, e->second.logits, &e->second.drawn));
    TRY(lw_session_finish(e->session, &e->times));
    TRY(lw_session_finish(e->session, &e->times));
    TRY(lw_session_profile_rows(e->session, NULL, 0, &n));
    e->ended = true;
}

// One run of everything in which request number `n` is refused; false when there were fewer.
static bool run_all(long n, everything* e) {
    memset(e, 0, sizeof *e);
    const long before = atomic_load(&live);
    atomic_store(&asked, 0);
    atomic_store(&refused_one, n);
    const int failures = failed;
    load(e);
    if (e->packed != NULL && (!give_up || atomic_load(&asked) < n || n == 0)) adapt(e);
    if (e->adapter != NULL && (!give_up || atomic_load(&asked) < n || n == 0)) run(e);
    const bool reached = atomic_load(&asked) >= n;
    lw_session_close(e->session);
    lw_adapter_close(e->adapter);
    lw_model_close(e->packed);
    lw_model_close(e->model);
    expect(atomic_load(&live) == before, "memory was not given back");
    if (failed != failures) printf("  when request %ld was refused\n", n);
    return reached;
}

static void test_all(void) {
    static everything wanted, found;
    run_all(0, &wanted);
    expect(wanted.ended, "everything works while nothing is refused");
    long n = 1;
    for (; run_all(n, &found) && n < 5000; ++n) {
        expect(give_up || found.ended, "what was refused is made again");
        const bool same = memcmp(found.second.logits, wanted.second.logits, sizeof wanted.second.logits) == 0 &&
                          found.second.drawn.token == wanted.second.drawn.token;
        expect(give_up || same, "another result after something was refused");
    }
    expect(n > 100 && n < 5000, "so many places ask for memory");
    printf("%ld requests for memory or threads, each refused once\n", n - 1);
}

// They measure, which takes time: nothing is left to measure with.
static void test_measurements(void) {
    lw_limits limits = {77, 77};
    lw_choice choices[16];
    uint32_t n = 0, found = 77;
    for (long i = 1; i <= 6; ++i) {
        atomic_store(&asked, 0);
        atomic_store(&refused_one, i);
        const lw_status status = lw_measure_limits(2, NULL, &limits);
        check_refusal("lw_measure_limits", status);
    }
    atomic_store(&refused_one, 0);
    expect(limits.read_gb_s == 77, "a refused measurement writes nothing");
    expect(lw_choices(NULL, choices, 16, &n) == LW_OK, "lw_choices");
    for (long i = 1; i <= n; ++i) {
        atomic_store(&asked, 0);
        atomic_store(&refused_one, i);
        check_refusal("lw_tune", lw_tune(NULL, choices, 16, &found));
    }
    expect(found == 77, "a refused measurement writes nothing");
    atomic_store(&refused_one, 0);
    expect(atomic_load(&live) == 0, "a refused measurement leaves nothing behind");
}

int main(void) {
    alarm(300);  // what hangs fails
    const uint32_t node = 0;
    can_place = lw_numa_check(&node, 1) == LW_OK;
    test_all();
    give_up = true;
    test_all();
    test_measurements();
    return report();
}
