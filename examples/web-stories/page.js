// The page: a prompt, a button, the text.
import { Stories } from './stories.js';

const element = (id) => document.getElementById(id);
const say = (text) => { element('status').textContent = text; };

try {
  const stories = await Stories.load(new URL('model/', location.href));
  element('go').disabled = false;
  say(stories.adapter);
  element('go').onclick = async () => {
    element('go').disabled = true;
    const prompt = element('prompt').value;
    const start = performance.now();
    let count = 0;
    try {
      await stories.tell(prompt, 200, (text, tokens) => {
        count = tokens;
        element('text').textContent = prompt + text;
      });
      say(`${(count / (performance.now() - start) * 1000).toFixed(1)} tokens a second`);
    } catch (error) {
      say(String(error));
    }
    element('go').disabled = false;
  };
} catch (error) {
  say(String(error));
}
