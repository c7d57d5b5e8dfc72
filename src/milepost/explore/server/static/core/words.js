// Every string of the page, in its languages.
"use strict";
((milepost) => {
  const table = {
    title: ["milepost explore", "milepost explore"],
    lede: ["How a Transformer knows where a token stands, and what happens past the length it was trained at. The curves on these pages are computed by the library on this machine, all but the losses of question 4, which were measured.",
      "Transformer 怎样知道一个 token 在哪里？超出训练长度又会怎样？这里的曲线都由本机上的程序库当场算出；只有第 4 个问题中的损失是实测的。"],
    questions: ["Nine questions", "九个问题"],
    no_question: ["No question has the name “{name}”; choose one.", "没有名为“{name}”的问题，请选一个。"],
    no_address: ["Nothing here has the address “{name}”; choose a question.", "这里没有“{name}”这个地址，请选一个问题。"],
    questions_lead: ["Guess first, then let it be computed.", "先猜，再算。"],
    workshop: ["Build your own", "自己动手"],
    composer: ["Compose schemes", "组合方案"],
    composer_about: ["Up to four schemes side by side: scores, weights, maps, angles and distances, term by term.", "并排比较至多四个方案：分数、权重、热图、角度、距离，逐项拆解。"],
    reading: ["On words", "看句子"],
    reading_about: ["Where the heads of a real model look in a sentence, before and after a scheme.", "真实模型的各个注意力头在一句话里看向哪里，换方案前后对比。"],
    start: ["All questions", "全部问题"],
    language: ["中文", "English"],
    guess_title: ["Your guess first", "先猜一猜"],
    guess_draw: ["Draw the curve you expect: drag over the axes. By keyboard: Tab to a point, then arrow up and down.", "在坐标里拖动，画出你预期的曲线。键盘：用 Tab 选中一个点，再按上下方向键。"],
    guess_show: ["Compute it", "计算"],
    guess_show_measured: ["Show what was measured", "看实测结果"],
    guess_skip: ["Show it without a guess", "不猜，直接看"],
    guess_again: ["Guess again", "重新猜"],
    guess_clear: ["Clear", "清除"],
    guess_point: ["Guess at {x}", "{x} 处的猜测"],
    guess_name: ["your guess", "你的猜测"],
    guess_off: ["Your curve is off by {d} on average ({y}), {p} % of the height of the axes it was drawn on.", "你的曲线平均偏差 {d}（{y}），是作图坐标高度的 {p} %。"],
    guess_off_little: ["Your curve is off by {d} on average ({y}), less than 1 % of the height of the axes it was drawn on.", "你的曲线平均偏差 {d}（{y}），不到作图坐标高度的 1 %。"],
    guess_off_close: ["Your curve is within {p} % on average.", "你的曲线平均偏差在 {p} % 以内。"],
    guess_of_other: ["Your guess was about other settings, so it is not drawn here.", "你的猜测对应的是另一组设置，这里不画出。"],
    guess_off_factor: ["Your curve is within a factor of {f} on average.", "你的曲线平均相差 {f} 倍以内。"],
    guess_right: ["That is what the computation gives.", "计算结果正是如此。"],
    guess_wrong: ["Not quite. The computation gives: {answer}", "不完全对。计算的结果是：{answer}"],
    controls: ["Settings", "设置"],
    reset: ["Reset", "复位"],
    more: ["Read on", "展开"],
    look_for: ["What to look for", "看什么"],
    result: ["Result", "结果"],
    says: ["What was found", "算出了什么"],
    code: ["The code", "代码"],
    copy: ["Copy", "复制"],
    copied: ["Copied", "已复制"],
    copy_link: ["Copy link", "复制链接"],
    csv: ["Numbers as CSV", "数据（CSV）"],
    export: ["Save as one HTML file", "存为一个 HTML 文件"],
    exporting: ["Computing the file …", "正在计算文件 …"],
    try_own: ["Try your own", "自己试试"],
    previous: ["Previous", "上一个"],
    next: ["Next", "下一个"],
    value: ["value", "值"],
    pointer_hint: ["Point at a figure, or focus it and use the arrow keys, for its values. Dashed marks with a handle can be dragged.", "把指针移到图上（或选中后按方向键）可读数值。带柄的虚线可以拖动。"],
    hidden: ["hidden", "不可见"],
    row: ["row", "行"],
    column: ["column", "列"],
    seen: ["met in training", "训练中见过"],
    first_met: ["first met at the new length", "新长度下首次出现"],
    never_met: ["empty: never met", "空白：未见过"],
    hand: ["hand: the chosen position", "指针：所选位置"],
    turns: ["{n} of a turn", "{n} 圈"],
    never_digit: ["ringed: training never met the angle that the pair stands at", "圈出：这一对停在训练中从未见过的角度"],
    computing: ["Computing …", "计算中 …"],
    failed: ["The server does not answer. Is it still running?", "服务器没有响应，它还在运行吗？"],
    no_token: ["Open the link that milepost explore printed: it has a token.", "请打开 milepost explore 打印出的链接，其中带有令牌。"],
    off_grid: ["Computed at {at}; this file has no value between.", "显示的是 {at} 处的计算结果；此文件没有中间的值。"],
    on_grid: ["This file holds what the library computed at {n} settings. It needs no server.", "此文件保存了程序库在 {n} 组设置下的计算结果，无需服务器。"],
    fewer: ["Fewer places of {names} were kept so that the file stays small.", "为了让文件保持小巧，{names} 只保留了较少的取值。"],
    add_scheme: ["Add a scheme", "添加方案"],
    remove_scheme: ["Remove", "移除"],
    add_part: ["Add a part …", "添加部件 …"],
    parts_of: ["Parts and numbers", "部件与数值"],
    remove_part: ["Remove {name}", "移除 {name}"],
    more_of: ["more of {name}", "{name} 的更多参数"],
    none: ["none", "无"],
    scheme: ["Scheme {n}", "方案 {n}"],
    scheme_text: ["As text", "文本形式"],
    python: ["In Python", "Python 写法"],
    equation: ["The equation", "公式"],
    equation_hint: ["Point at a part, or focus it: what it alone contributes is drawn.", "指向或选中其中一项，即可单独画出它的贡献。"],
    views: ["Views", "视图"],
    view_score: ["scores", "分数"],
    view_weights: ["weights", "权重"],
    view_maps: ["maps", "热图"],
    view_angles: ["angles seen", "见过的角度"],
    view_distances: ["distances", "距离"],
    too_many: ["Four schemes at most.", "最多四个方案。"],
    sentence: ["Sentence", "句子"],
    no_model: ["No model was given. Start with a folder of a model of transformers:", "没有给定模型。请用 transformers 模型的文件夹启动："],
    head: ["Head {n}", "头 {n}"],
    heads: ["All heads of the layer", "该层的各个头"],
    chosen_head: ["Choose a head", "选择一个头"],
    chosen: ["chosen", "已选"],
    before: ["unchanged", "原样"],
  };
  const missing = [];

  milepost.languages = ["en", "zh"];
  milepost.lang = document.documentElement.dataset.lang || "en";

  // A string of the table, with what stands in braces filled in.
  milepost.word = (name, values = {}) => {
    if (!(name in table)) {
      missing.push(name);
      throw new Error(`no string ${name}`);
    }
    const text = table[name][milepost.languages.indexOf(milepost.lang)];
    return text.replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
  };

  // A text that came in both languages, or one that needs none.
  milepost.say = (text) => (text === null || text === undefined ? "" : typeof text === "object" ? text[milepost.lang] : String(text));

  milepost.setLanguage = (lang) => {
    if (!milepost.languages.includes(lang)) return;
    milepost.lang = lang;
    document.documentElement.lang = lang === "zh" ? "zh-CN" : lang;
    document.documentElement.dataset.lang = lang;
  };
})((globalThis.milepost ??= {}));
