/* What every model shares: named promises. A promise is one bit that a model asserts, so the checker's message names it
 * ("assertion violated no_early_publish"). The last promise of every model, `progress`, is the checker's own: no
 * reachable state in which somebody waits and nothing can happen (an invalid end state), and, where a model retries,
 * the formula `progress`. */
#define PROMISE(name) bit name = 1
#define HOLDS(name, condition) atomic { name = (condition); assert(name) }

/* One option of a `do` for each of the first six or seven members of an array. */
#define EACH_OF_6(option) option(0) option(1) option(2) option(3) option(4) option(5)
#define EACH_OF_7(option) EACH_OF_6(option) option(6)
