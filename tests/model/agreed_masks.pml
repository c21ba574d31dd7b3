/* agree_on_masks(), in uccl_ep/membership/agreed_values.py: the agreement of recover.pml without a quorum and without a
 * new life. Any rank may give any other up at any time; whom it masked before, it gives up at once. Two ranks of which
 * neither leaves the other out have the same masks. Planted bugs: BUG_SUSPECTS_DECIDE, BUG_OLD_CONFIRMATIONS_COUNT,
 * BUG_NOBODY_IS_GIVEN_UP. */
#include "promises.pml"

#define AGREED_MASKS
#define GENERATIONS 1

PROMISE(ranks_that_keep_each_other_mask_alike);

#include "recover.pml"
