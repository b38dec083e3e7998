/* Style and script of the page of coloured tokens: constants of the page, no data. Used by token_page.c only. */
#ifndef KVE_EVAL_TOKEN_PAGE_PARTS_H
#define KVE_EVAL_TOKEN_PAGE_PARTS_H

#include "eval/report_text.h"

enum { KVE_TOKEN_LEVELS = 32 }; /* colours of ranks: classes r0 (rank 1) to r31 */

void kve_token_page_style(kve_tw *w);
extern const char kve_token_page_script[];

#endif
