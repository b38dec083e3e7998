/* Curves of a measure over the absolute budget, drawn by gnuplot as SVG. Contract: report_files.h. */
#include "eval/report_files.h"

#include "host/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Okabe and Ito's palette (without its yellow, too pale on white, and its black, kept for the full cache), then four
 * of Tol's: both are made for colour-blind readers; points and dashes tell the rest. */
static const char *const g_colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                       "#56b4e9", "#332288", "#882255", "#999933", "#117733"};
enum { N_COLORS = sizeof g_colors / sizeof *g_colors, N_POINTS = 6 };

kve_report_style kve_report_style_of(const kve_report *r, size_t i_policy)
{
    const kve_report_policy *p = &r->policies[i_policy];
    size_t i = 0;
    if (p->class == KVE_C_NONE)
        return (kve_report_style){.color = "#1b1f24", .point = -1};
    for (size_t k = 0; k < i_policy; k++)
        i += r->policies[k].class == p->class ||
             (r->policies[k].class < p->class && p->class < KVE_C_FUTURE && r->policies[k].class != KVE_C_NONE);
    if (p->class == KVE_C_FUTURE)
        return (kve_report_style){.color = i % 2 ? "#b4b9bf" : "#8a9099", .point = (int)(4 - i % 2)};
    return (kve_report_style){
        .color = g_colors[i % N_COLORS], .point = (int)(i % N_POINTS), .dashed = p->class != KVE_C_FREE};
}

/* --- the script ------------------------------------------------------------------------------------------------- */

typedef struct extent {
    double x_low, x_high, y_low, y_high;
    bool any;
} extent;

/* The ends of the bar; where there is no interval, it has no length. */
static double low_of(const kve_report_stat *s)
{
    return isnan(s->low) ? s->mean : s->low;
}

static double high_of(const kve_report_stat *s)
{
    return isnan(s->high) ? s->mean : s->high;
}

static void see(extent *e, double x, const kve_report_stat *s)
{
    if (isfinite(x)) {
        e->x_low = fmin(e->x_low, x);
        e->x_high = fmax(e->x_high, x);
        e->any = true;
    }
    e->y_low = fmin(e->y_low, low_of(s));
    e->y_high = fmax(e->y_high, high_of(s));
}

static extent find_extent(const kve_report *r, const kve_plot *plot)
{
    extent e = {.x_low = INFINITY, .x_high = 0, .y_low = INFINITY, .y_high = -INFINITY};
    for (size_t p = 0; p < r->n_policies; p++)
        for (size_t b = 0; b < r->n_slots; b++) {
            const kve_report_cell *c = kve_report_at(r, plot->i_scope, p, b);
            const kve_report_stat *s = &c->stat[plot->m];
            if (s->n && !kve_report_uncompressed(c))
                see(&e, b ? (double)r->budgets[b] : NAN, s);
        }
    return e;
}

static void data_blocks(const kve_report *r, const kve_plot *plot, kve_tw *w)
{
    for (size_t p = 0; p < r->n_policies; p++) {
        /* a sideways step of 1 % of the budget keeps the bars of neighbouring curves apart */
        double step = exp2(0.014 * ((double)p - ((double)r->n_policies - 1) / 2));
        kve_tw_printf(w, "$p%zu << EOD\n", p);
        for (size_t b = 1; b < r->n_slots; b++) {
            const kve_report_cell *c = kve_report_at(r, plot->i_scope, p, b);
            const kve_report_stat *s = &c->stat[plot->m];
            if (s->n && !kve_report_uncompressed(c))
                kve_tw_printf(w, "%.6g %.9g %.9g %.9g\n", (double)r->budgets[b] * step, s->mean, low_of(s), high_of(s));
            else
                kve_tw_puts(w, "\n"); /* a gap, not a line across it */
        }
        kve_tw_puts(w, "EOD\n");
    }
}

static void axes(const kve_report *r, const kve_plot *plot, const extent *e, kve_tw *w)
{
    bool share = plot->m == KVE_M_SCORE && e->y_low >= 0 && e->y_high <= 1;
    bool wide = plot->m != KVE_M_SCORE && e->y_low > 0 && e->y_high > 8 * e->y_low && plot->m != KVE_M_LOST;
    kve_tw_printf(w, "set xrange [%.6g:%.6g]\nset xtics (", e->x_low / 1.25, e->x_high * 1.25);
    size_t n_shown = 0, every = plot->small && r->n_slots > 6 ? 2 : 1;
    for (size_t b = 1; b < r->n_slots; b++)
        if ((b - 1) % every == 0)
            kve_tw_printf(w, "%s%lld", n_shown++ ? ", " : "", (long long)r->budgets[b]);
    kve_tw_puts(w, ")\n");
    kve_tw_puts(w, wide ? "set logscale y\n" : "unset logscale y\n");
    if (share)
        kve_tw_puts(w, "set yrange [-0.02:1.02]\nset ytics 0, 0.25, 1\nset format y '%.2f'\n");
    else if (wide)
        kve_tw_printf(w, "set yrange [%.6g:%.6g]\nset ytics auto\nset format y '%%g'\n", e->y_low / 1.1,
                      e->y_high * 1.1);
    else if (plot->m == KVE_M_LOST)
        kve_tw_printf(w, "set yrange [0:%.6g]\nset ytics auto\nset format y '%%g'\n", fmax(e->y_high * 1.05, 1e-9));
    else
        kve_tw_puts(w, "set yrange [*:*]\nset ytics auto\nset format y '%g'\n");
    if (plot->small)
        kve_tw_puts(w, "unset xlabel\nunset ylabel\nset lmargin 6\n");
    else
        kve_tw_printf(w,
                      "set xlabel 'tokens kept per layer and KV head (log scale)' textcolor rgb '#57606a'\n"
                      "set ylabel '%s' textcolor rgb '#57606a'\nset lmargin 9\n",
                      kve_measures[plot->m].title);
}

/* gnuplot's numbers for the points of kve_report_style. */
static int point_type(int point)
{
    static const int types[N_POINTS] = {7, 5, 9, 11, 13, 15};
    return types[point];
}

/* What is drawn k-th: full caches first, then upper bounds, and what users came for last, on top. */
static size_t drawn(const kve_report *r, size_t k)
{
    size_t n_none = 0;
    while (n_none < r->n_policies && r->policies[n_none].class == KVE_C_NONE)
        n_none++;
    return k < n_none ? k : r->n_policies - 1 - (k - n_none);
}

/* Elements 1 .. n_policies are the bars, the next n_policies the curves: each is there even if it has no data, so that
 * adapt_svg() can tell whose it is. (The bars of `with yerrorbars` would come with a white disc over the curve.) */
static void curves(const kve_report *r, const kve_plot *plot, kve_tw *w)
{
    double thick = plot->small ? 1.4 : 2.0, size = plot->small ? 0.4 : 0.75;
    for (size_t k = 0; k < r->n_policies; k++)
        kve_tw_printf(w, "%s$p%zu using 1:3:(0):($4-$3) notitle with vectors nohead lc rgb '%s' lw %.1f",
                      k ? ", " : "plot ", drawn(r, k), kve_report_style_of(r, drawn(r, k)).color,
                      plot->small ? 0.6 : 1.0);
    for (size_t k = 0; k < r->n_policies; k++) {
        size_t p = drawn(r, k);
        kve_report_style style = kve_report_style_of(r, p);
        const kve_report_stat *flat = &kve_report_at(r, plot->i_scope, p, 0)->stat[plot->m];
        if (flat->n)
            kve_tw_printf(w, ", %.9g notitle with lines lc rgb '%s' lw %.1f", flat->mean, style.color, 0.7 * thick);
        else
            kve_tw_printf(w, ", $p%zu using 1:2 notitle with %s lc rgb '%s' lw %.1f dt %s", p,
                          style.point < 0 ? "lines" : "linespoints", style.color, thick, style.dashed ? "(10,5)" : "1");
        if (!flat->n && style.point >= 0)
            kve_tw_printf(w, " pt %d ps %.2f", point_type(style.point), size);
    }
    kve_tw_puts(w, "\n");
}

static void script(const kve_report *r, const kve_plot *plots, size_t n, kve_tw *w)
{
    kve_tw_puts(w, "set encoding utf8\nunset key\nset border 3 lc rgb '#c3c8cf'\nset tics nomirror scale 0.5 textcolor "
                   "rgb '#57606a'\nset grid ytics lc rgb '#e6e9ed' lw 1 dt 1\nset logscale x 2\n\n");
    for (size_t i = 0; i < n; i++) {
        extent e = find_extent(r, &plots[i]);
        if (!e.any)
            continue;
        kve_tw_printf(w, "set terminal svg size %s dynamic font 'system-ui,sans-serif,%d' name 'plot%zu'\n",
                      plots[i].small ? "300,190" : "640,400", plots[i].small ? 10 : 13, i);
        kve_tw_printf(w, "set output '%zu.svg'\n", i);
        data_blocks(r, &plots[i], w);
        axes(r, &plots[i], &e, w);
        curves(r, &plots[i], w);
    }
    kve_tw_puts(w, "set output\n");
}

/* --- running gnuplot -------------------------------------------------------------------------------------------- */

/* The last line of gnuplot's own words: the lines before it point into the script. */
static kve_status read_log(const char *dir, kve_arena *arena, const char **line)
{
    kve_str path = {0};
    char *text = NULL;
    size_t len = 0;
    *line = "it says nothing";
    kve_status st = kve_path_join(&path, dir, "log");
    if (st == KVE_OK)
        st = kve_file_read(path.p, &text, &len);
    while (st == KVE_OK && len && strchr(" \n", text[len - 1]))
        text[--len] = '\0';
    if (st == KVE_OK && len) {
        const char *last = strrchr(text, '\n');
        st = kve_report_text(arena, line, "%s", last ? last + 1 : text);
    }
    free(text);
    kve_str_free(&path);
    return st;
}

static kve_status run_gnuplot(const char *gnuplot, const char *dir, kve_arena *arena, const char **problem)
{
    /* -d: no init files of the user, which could change every plot */
    char *const argv[] = {(char *)(uintptr_t)gnuplot, (char *)(uintptr_t) "-d", (char *)(uintptr_t) "plots.gp", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    int status = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, dir);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "log", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    int error = posix_spawnp(&pid, gnuplot, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error)
        return kve_report_text(arena, problem,
                               "no plots: '%s' cannot be run (%s); install it (Debian: apt-get install gnuplot-nox) "
                               "and run the report again",
                               gnuplot, strerror(error));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return KVE_OK;
    const char *said = NULL;
    KVE_TRY(read_log(dir, arena, &said));
    return kve_report_text(arena, problem,
                           "no plots: '%s' failed: %s; version 5.4 or newer is needed, with the svg terminal (Debian: "
                           "apt-get install gnuplot-nox)",
                           gnuplot, said);
}

static const char *skip_to(const char *p, const char *what)
{
    const char *hit = strstr(p, what);
    return hit ? hit + strlen(what) : NULL;
}

/* Several SVGs in one page share one name space: the plot's number goes into every id. Titles of curves, which
 * browsers show as tooltips, become the policies' names. */
static void adapt_svg(const kve_report *r, const char *svg, size_t number, kve_tw *w)
{
    static const char canvas[] = " id=\"gnuplot_canvas\"";
    char title[48], own[48];
    int title_len = snprintf(title, sizeof title, "<title>plot%zu_plot_", number);
    int own_len = snprintf(own, sizeof own, "<title>plot%zu</title>", number);
    for (const char *p = svg; *p;) {
        const char *id = strncmp(p, "id='", 4) == 0 ? "id='" : strncmp(p, "'#", 2) == 0 ? "'#" : NULL;
        if (strncmp(p, canvas, sizeof canvas - 1) == 0) {
            p += sizeof canvas - 1;
        } else if (strncmp(p, own, (size_t)own_len) == 0) {
            p += own_len;
        } else if (id) {
            kve_tw_printf(w, "%sk%zu", id, number);
            p += strlen(id);
        } else if (strncmp(p, title, (size_t)title_len) == 0) {
            unsigned long element = strtoul(p + title_len, NULL, 10);
            kve_tw_puts(w, "<title>");
            if (element >= 1 && element <= 2 * r->n_policies)
                kve_tw_html(w, r->policies[drawn(r, (element - 1) % r->n_policies)].name);
            kve_tw_puts(w, "</title>");
            p = skip_to(p, "</title>");
            if (!p)
                return;
        } else {
            char one[2] = {*p++, '\0'};
            kve_tw_puts(w, one);
        }
    }
}

static kve_status take_svg(const kve_report *r, const char *path, size_t number, kve_arena *arena, const char **svg)
{
    char *text = NULL, *copy = NULL;
    size_t len = 0;
    kve_str out = {0};
    kve_tw w = {.out = &out};
    KVE_TRY(kve_file_read(path, &text, &len));
    const char *start = strstr(text, "<svg"); /* what stands before is the XML declaration */
    if (start)
        adapt_svg(r, start, number, &w);
    if (start && w.status == KVE_OK && out.len) {
        w.status = kve_arena_strndup(arena, out.p, out.len, &copy);
        *svg = copy;
    }
    kve_str_free(&out);
    free(text);
    return w.status;
}

static kve_status draw_in(const kve_report *r, const char *gnuplot, const char *dir, kve_plot *plots, size_t n,
                          kve_str *path, kve_arena *arena, const char **problem)
{
    kve_str text = {0};
    kve_tw w = {.out = &text};
    script(r, plots, n, &w);
    kve_status st = w.status == KVE_OK ? kve_path_join(path, dir, "plots.gp") : w.status;
    if (st == KVE_OK)
        st = kve_file_write(path->p, text.p, text.len);
    kve_str_free(&text);
    KVE_TRY(st);
    KVE_TRY(run_gnuplot(gnuplot, dir, arena, problem));
    for (size_t i = 0; i < n && !*problem; i++) {
        kve_str_clear(path);
        KVE_TRY(kve_str_printf(path, "%s/%zu.svg", dir, i));
        if (kve_path_exists(path->p))
            KVE_TRY(take_svg(r, path->p, i, arena, &plots[i].svg));
    }
    return KVE_OK;
}

/* Removes only what this file made. */
static kve_status clean_up(const char *dir, size_t n, kve_str *path)
{
    static const char *const names[] = {"plots.gp", "log"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        KVE_TRY(kve_path_join(path, dir, names[i]));
        unlink(path->p);
    }
    for (size_t i = 0; i < n; i++) {
        kve_str_clear(path);
        KVE_TRY(kve_str_printf(path, "%s/%zu.svg", dir, i));
        unlink(path->p);
    }
    rmdir(dir);
    return KVE_OK;
}

kve_status kve_report_plots(const kve_report *r, const char *gnuplot, kve_plot *plots, size_t n, kve_arena *arena,
                            const char **problem)
{
    const char *temp = getenv("TMPDIR");
    kve_str dir = {0}, path = {0};
    *problem = NULL;
    for (size_t i = 0; i < n; i++)
        plots[i].svg = NULL;
    kve_status st = kve_str_printf(&dir, "%s/kveval-plots-XXXXXX", temp && *temp ? temp : "/tmp");
    if (st == KVE_OK && !mkdtemp(dir.p)) {
        st = kve_report_text(arena, problem, "no plots: a temporary folder %s cannot be made (%s); set TMPDIR", dir.p,
                             strerror(errno));
    } else if (st == KVE_OK) {
        st = draw_in(r, gnuplot ? gnuplot : "gnuplot", dir.p, plots, n, &path, arena, problem);
        kve_status cleaned = clean_up(dir.p, n, &path);
        st = st == KVE_OK ? cleaned : st;
    }
    kve_str_free(&dir);
    kve_str_free(&path);
    return st;
}
